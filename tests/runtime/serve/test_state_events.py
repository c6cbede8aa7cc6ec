"""A stream that waits says so: comments that every client ignores, named events for those that ask."""

import asyncio
import json

import pytest
from tests.runtime.serve.scripted import served

BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40, "stream": True}


@pytest.mark.parametrize("asks", [False, True], ids=["comments", "events"])
async def test_who_stands_in_line_is_told_his_place(asks: bool) -> None:
    async with served("a long answer of forty tokens, so that others wait", max_running=1) as http:
        headers = {"x-ramet-events": "1"} if asks else {}

        async def ask() -> str:
            return (await http.post("/v1/chat/completions", json=BODY, headers=headers)).text

        texts = await asyncio.gather(*(ask() for _ in range(3)))
    told = [line for text in texts for line in text.splitlines() if "queued" in line]
    assert len(told) >= 1
    if asks:
        assert "event: ramet.queued" in told
        states = [json.loads(line[6:]) for text in texts for line in text.splitlines() if '"ramet.queued"' in line]
        assert all(state["position"] >= 0 and state["index"] == 0 for state in states)
    else:
        assert all(line.startswith(": queued position=") for line in told)
        plain = [line for text in texts for line in text.splitlines() if line and not line.startswith((":", "data: "))]
        assert plain == []
    assert all(text.rstrip().endswith("data: [DONE]") for text in texts)
