"""What a server tells of its last requests: figures, why each missed the cache, and to whom."""

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.records import Record, Records, record_of

sys.path.insert(0, str(Path(__file__).parent))
from scripted import HERMES, served


async def say(http: httpx.AsyncClient, *texts: str, **more: Any) -> str:
    """Ask with these turns, user first; the answer's id."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    answer = await http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4}, **more)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def explained(http: httpx.AsyncClient, request_id: str, **more: Any) -> Any:
    answer = await http.get(f"/v1/requests/{request_id}", **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_newest_come_first_with_their_figures() -> None:
    async with served("Hello there", template=HERMES) as http:
        first, second = await say(http, "One"), await say(http, "Two")
        listed = (await http.get("/v1/requests")).json()["data"]
        assert [item["id"] for item in listed] == [second, first]
        assert [item["id"] for item in (await http.get("/v1/requests?limit=1")).json()["data"]] == [second]
    assert listed[0]["new_tokens"] == 4 and listed[0]["finish"] == "length"
    assert listed[0]["client"].startswith("python-httpx") and listed[0]["path"] == "/v1/chat/completions"
    assert listed[0]["prompt_tokens"] > listed[0]["cached_tokens"] > 0


async def test_an_edited_turn_is_shown_with_both_texts_and_its_number() -> None:
    long = "a long and never changing beginning of the talk "
    async with served("fine", template=HERMES) as http:
        await say(http, long, "fine", "then the weather in Oslo, and what to wear there")
        found = await explained(http, await say(http, long, "fine", "then the football in Rome, and what to eat"))
    cache = found["cache"]
    assert (cache["cause"], cache["turn"]) == ("diverged", 3)
    assert cache["before"].endswith("then the ")
    assert cache["came"].startswith("football in Rome")
    assert cache["cached_instead"].startswith("weather in Oslo")
    assert cache["at_token"] + cache["not_cached_tokens"] == found["prompt_tokens"]


async def test_a_new_turn_is_never_seen_and_the_same_prompt_is_whole() -> None:
    async with served("fine", template=HERMES) as http:
        await say(http, "hello you")
        assert (await explained(http, await say(http, "hello you")))["cache"]["cause"] is None
        assert (await explained(http, await say(http, "hello you", "fine", "more")))["cache"]["cause"] == "never_seen"


async def test_an_unknown_id_is_told_where_to_look() -> None:
    async with served("fine") as http:
        answer = await http.get("/v1/requests/chatcmpl-none")
    assert answer.status_code == 404
    assert "GET /v1/requests" in answer.json()["error"]["message"]


async def test_each_key_sees_its_own_and_nothing_that_others_sent() -> None:
    config = ServeConfig(api_keys=("anna", "bert"))
    anna, bert = ({"authorization": f"Bearer {key}"} for key in config.api_keys)
    secret, other = "the same opening words, my pin is 4711", "the same opening words, tell me yours"
    async with served("fine", template=HERMES, config=config) as http:
        hers = await say(http, secret, headers=anna)
        his = await say(http, other, headers=bert, extensions={})
        assert [item["id"] for item in (await http.get("/v1/requests", headers=bert)).json()["data"]] == [his]
        assert (await http.get(f"/v1/requests/{hers}", headers=bert)).status_code == 404
        told = await http.get(f"/v1/requests/{his}", headers=bert)
        body = {"messages": [{"role": "user", "content": other + "!"}], "explain": True, "max_tokens": 2}
        asked = await http.post("/v1/chat/completions", json=body, headers=bert)
        opened = (await http.post("/v1/programs", json={}, headers=bert)).json()
        branch = f"/v1/programs/{opened['program_id']}/branches/{opened['branch_id']}"
        piece = {
            "type": "messages",
            "messages": [{"role": "user", "content": other + " please"}],
            "add_generation_prompt": True,
        }
        await http.post(f"{branch}/extend", json={"pieces": [piece]}, headers=bert)
        program = await http.post(f"{branch}/generate", json={"max_tokens": 2}, headers=bert)
    assert told.json()["cache"]["cause"] == "diverged"
    assert "4711" not in told.text and "cached_instead" not in told.text
    assert "expected_tokens" not in asked.text
    assert '"cause":"' in program.text and "expected_tokens" not in program.text


async def test_browsers_get_the_page_and_probes_a_line() -> None:
    async with served("fine") as http:
        page = await http.get("/", headers={"accept": "text/html,*/*"})
        line = await http.get("/")
    assert page.headers["content-type"].startswith("text/html") and "<title>Ramet</title>" in page.text
    assert "//" not in page.text.replace("https://", "//").split("<style>")[0]  # nothing from another host
    assert line.json()["name"] == "ramet"


def test_records_are_bounded_and_prompts_go_before_figures() -> None:
    records = Records(max_records=3, max_tokens=10)
    for number, length in enumerate((4, 4, 4, 4)):
        records.add("", record(str(number), num_prompt=length), range(length))
    assert [item.id for item in records.newest("", 10)] == ["3", "2", "1"]
    assert records.find("", "0") is None
    assert records.prompt("1") is None  # twelve tokens are more than ten
    assert _ids(records.prompt("3")) == [0, 1, 2, 3]
    assert records.find("another", "3") is None


def record(request_id: str, *, num_prompt: int) -> Record:
    return record_of(
        request_id,
        ended=0.0,
        path="/",
        client="-",
        program=None,
        num_prompt=num_prompt,
        finished=[],
        outcome="aborted",
        took_s=0.0,
        miss=None,
    )


def _ids(prompt: Sequence[int] | None) -> list[int]:
    return list(prompt or ())


LINE = re.compile(
    r"id=\S+ client=\S+ program=\S+ prompt=\d+ cached=\d+ new=\d+ queue_ms=\d+ prefill_ms=\d+ decode_ms=\d+ "
    r"total_ms=\d+ finish=(.+)"
)


async def test_one_line_a_request_whatever_its_dialect(caplog: pytest.LogCaptureFixture) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    bodies = {
        "/v1/chat/completions": chat,
        "/v1/messages": chat,
        "/v1/completions": {"prompt": "Hi", "max_tokens": 3},
        "/v1/responses": {"input": "Hi", "max_output_tokens": 3},
        "/generate": {"text": "Hi", "sampling_params": {"max_new_tokens": 3}},
    }
    caplog.set_level("INFO", "ramet.request")
    async with served("Hello there") as http:
        for path, body in bodies.items():
            assert (await http.post(path, json=body)).status_code == 200
        opened = (await http.post("/v1/programs", json={})).json()
        branch = f"/v1/programs/{opened['program_id']}/branches/{opened['branch_id']}"
        await http.post(f"{branch}/extend", json={"pieces": [{"type": "text", "text": "Hi"}]})
        await http.post(f"{branch}/generate", json={"max_tokens": 3})
        await http.post(f"{branch}/select", json={"choices": ["a", "b"]})
        await http.post(f"{branch}/generate", json={"max_tokens": 3, "sampling": {"temperature": -1}})
        listed = (await http.get("/v1/requests")).json()["data"]
    found = [LINE.fullmatch(record.getMessage()) for record in caplog.records if record.name == "ramet.request"]
    assert all(found)
    finishes = [match[1] for match in found if match]
    assert finishes[:7] == ["length"] * 6 + ["stop"] and finishes[7].startswith("error")
    assert listed[2]["program"] == opened["program_id"]
    assert (listed[2]["prompt_tokens"], listed[2]["new_tokens"]) == (2, 3)


class Slowed:
    """Around an executor: a step takes a while."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def execute(self, plan: Any) -> Any:
        time.sleep(0.005)
        return self._inner.execute(plan)


async def test_generations_of_programs_are_in_flight_and_bounded() -> None:
    async with served("x" * 400, config=ServeConfig(max_in_flight=1), wrap=Slowed) as http:
        opened = (await http.post("/v1/programs", json={})).json()
        branch = f"/v1/programs/{opened['program_id']}/branches/{opened['branch_id']}"
        await http.post(f"{branch}/extend", json={"pieces": [{"type": "text", "text": "Hi"}]})
        running = asyncio.create_task(http.post(f"{branch}/generate", json={"max_tokens": 200}))
        while (await http.get("/health")).json()["in_flight"] == 0:
            await asyncio.sleep(0.01)
        refused = await http.post("/v1/completions", json={"prompt": "Hi"})
        assert (await running).status_code == 200
        assert (await http.get("/health")).json()["in_flight"] == 0
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
