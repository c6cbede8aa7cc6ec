"""What users reported against other servers, asked of this one over HTTP; docs/known-failures.md maps each report to
its tests. A scripted model answers, so every word and every count is known."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from ramet.constrained.compile import compile
from ramet.constrained.spec import JsonSchema
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import ContextOverflow
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.types import GenerateSpec, ProgramSpec, Sampling, TextPiece
from ramet.testing import ByteTokenizer, ScriptedModel, scripted_client

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime" / "serve"))
from scripted import HERMES, byte_tokenizer, make_app, served

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}}}


def call_text(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def blocks(text: str) -> list[dict[str, Any]]:
    """The JSON data of an SSE body."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def post(http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return blocks(answer.text) if body.get("stream") and status == 200 else answer.json()


def cached(answer: Any) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


# Many turns (rows 1 to 12)
# --------------------------------------------------------------------------------------------------------------------

THINKS = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 < ns.last %}<think></think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Writes an empty think block into each assistant turn before the last user turn."""


async def test_think_blocks_written_into_old_turns_cost_what_follows_them_and_are_told() -> None:
    """Row 1: five tool rounds, then a new user turn changes all of them."""
    replies = [call_text("look", f'{{"n": {n}}}') for n in range(5)] + ["Done.", "Again."]
    history: list[Any] = [{"role": "user", "content": "Look five times. " * 20}]
    async with served(replies, template=THINKS, num_pages=4096) as http:
        for turn in range(6):
            body = {"messages": history, "tools": [tool("look")], "explain": True}
            answer = await post(http, CHAT, body)
            message = answer["choices"][0]["message"]
            history.append(
                {"role": "assistant", "content": message["content"], "tool_calls": message.get("tool_calls")}
            )
            if turn < 5:
                call = message["tool_calls"][0]
                history.append({"role": "tool", "tool_call_id": call["id"], "content": f"seen {turn}"})
        kept = len(history[0]["content"])
        flipped = await post(http, CHAT, {**body, "messages": [*history, {"role": "user", "content": "And now?"}]})
    assert kept < cached(flipped) < answer["usage"]["prompt_tokens"]
    miss = flipped["cache"]["miss"]
    assert miss is not None and miss["cause"] == "diverged" and miss["at_token"] >= kept


async def test_history_stays_as_it_was_run_where_asked() -> None:
    """Row 1, the option: the template would write think blocks into all five rounds, and none of them is touched."""
    replies = [call_text("look", f'{{"n": {n}}}') for n in range(5)] + ["Done.", "Again."]
    history: list[Any] = [{"role": "user", "content": "Look five times. " * 20}]
    config = ServeConfig(append_history=True)
    async with served(replies, template=THINKS, num_pages=4096, config=config) as http:
        for turn in range(6):
            body = {"messages": history, "tools": [tool("look")], "return_token_ids": True}
            answer = await post(http, CHAT, body)
            choice = answer["choices"][0]
            message = choice["message"]
            history.append(
                {"role": "assistant", "content": message["content"], "tool_calls": message.get("tool_calls")}
            )
            if turn < 5:
                call = message["tool_calls"][0]
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=2)
                history.append({"role": "tool", "tool_call_id": call["id"], "content": f"seen {turn}"})
        ran = answer["prompt_token_ids"] + choice["token_ids"]
        asked = {**body, "messages": [*history, {"role": "user", "content": "And now?"}]}
        after = await post(http, CHAT, asked)
        edited = [{"role": "user", "content": "Something else."}, *asked["messages"][1:]]
        other = await post(http, CHAT, {**body, "messages": edited})
    prompt = after["prompt_token_ids"]
    assert prompt[: len(ran) - 1] == ran[:-1] and cached(after) >= len(ran) - 2
    assert byte_tokenizer().decode(prompt).endswith("user\nAnd now?\nassistant\n")
    assert byte_tokenizer().decode(other["prompt_token_ids"]).count("<think></think>") == 6


async def test_a_marker_on_the_last_user_message_leaves_all_before_it_cached() -> None:
    """Row 3."""
    marks = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ '!' if m.role == 'user' and loop.last }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    history: list[Any] = [{"role": "user", "content": "First question. " * 30}]
    async with served("An answer.", template=marks) as http:
        first = await post(http, CHAT, {"messages": history})
        history += [{"role": "assistant", "content": "An answer."}, {"role": "user", "content": "Second."}]
        second = await post(http, CHAT, {"messages": history, "explain": True})
    before_the_flip = first["usage"]["prompt_tokens"] - len("!\n\nassistant\n") - 2
    assert cached(second) >= before_the_flip
    assert second["cache"]["miss"]["at_token"] == cached(second)


async def test_key_order_in_a_tool_schema_is_the_clients() -> None:
    """Row 7: byte for byte as sent, so two orders are two prompts, and neither is reordered in silence."""
    a, b = {"city": {"type": "string"}}, {"unit": {"type": "string"}}
    async with served("ok", template=HERMES) as http:
        prompts = []
        for properties in ({**a, **b}, {**b, **a}):
            tools = [tool("weather", {"type": "object", "properties": properties})]
            answer = await post(http, CHAT, {**ASK, "tools": tools, "return_token_ids": True, "max_tokens": 1})
            prompts.append(byte_tokenizer().decode(answer["prompt_token_ids"]))
    assert prompts[0] != prompts[1]
    assert prompts[0].index("city") < prompts[0].index("unit")
    assert prompts[1].index("unit") < prompts[1].index("city")


async def test_two_orders_of_keys_are_one_prompt_where_asked() -> None:
    """Row 7, the option: the model is shown one order, and writes in the order of each client's schema."""
    a, b = {"city": {"enum": ["Oslo"]}}, {"unit": {"enum": ["C"]}}
    said = []
    async with served("ok", template=HERMES, config=ServeConfig(sort_tool_keys=True)) as http:
        for properties in ({**a, **b}, {**b, **a}):
            schema = {"type": "object", "properties": properties, "required": ["city", "unit"]}
            body = {**ASK, "tools": [tool("weather", schema)], "tool_choice": "required", "parallel_tool_calls": False}
            said.append(await post(http, CHAT, {**body, "return_token_ids": True, "max_tokens": 200}))
    assert said[0]["prompt_token_ids"] == said[1]["prompt_token_ids"]
    orders = [list(json.loads(s["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])) for s in said]
    assert orders == [["city", "unit"], ["unit", "city"]]


async def test_stripping_the_billing_line_can_be_turned_off() -> None:
    """Row 8."""

    def body(nonce: str) -> dict[str, Any]:
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cch={nonce};\n" + "Long " * 50}]
        return {"max_tokens": 4, "system": system, **ASK}

    async with served("ok", config=ServeConfig(strip_nonces=False)) as http:
        await post(http, "/v1/messages", body("a1"))
        second = await post(http, "/v1/messages", body("b2"))
    assert second["usage"]["cache_read_input_tokens"] < len("system\nx-anthropic-billing-header: cch=a") + 5


async def test_the_same_prompt_twice_is_reused_by_default() -> None:
    """Row 9."""
    async with served("ok") as http:
        first = await post(http, CHAT, ASK)
        assert cached(await post(http, CHAT, ASK)) == first["usage"]["prompt_tokens"] - 1


async def test_an_overflowing_turn_costs_a_session_nothing() -> None:
    """Row 12."""
    history: list[Any] = [{"role": "user", "content": "x" * 360}]
    async with served("ok", context_length=440) as http:
        first = await post(http, CHAT, {"messages": history, "session_id": "s", "max_tokens": 2})
        history.append({"role": "assistant", "content": "ok"})
        too_long = {"messages": [*history, {"role": "user", "content": "y" * 400}], "session_id": "s"}
        assert (await post(http, CHAT, too_long, 400))["error"]["code"] == "context_length_exceeded"
        short = {"messages": [*history, {"role": "user", "content": "z"}], "session_id": "s", "max_tokens": 1}
        third = await post(http, CHAT, short)
    assert cached(third) >= first["usage"]["prompt_tokens"]


# Tool calls and the shape of answers (rows 13 to 20)
# --------------------------------------------------------------------------------------------------------------------

ARGUMENTS = {
    "string": '{"text": "a \\"quoted\\" \\\\ é 漢"}',
    "integer": '{"n": 12345}',
    "nested": '{"a": {"b": [{"c": "}"}, []]}, "d": null}',
    "empty": "{}",
}


def chat_calls(chunks: list[dict[str, Any]]) -> dict[int, dict[str, str]]:
    """Streamed calls put together as clients do it: by index."""
    calls: dict[int, dict[str, str]] = {}
    for chunk in chunks:
        for delta in chunk["choices"][0]["delta"].get("tool_calls", []):
            assert isinstance(delta["index"], int)
            call = calls.setdefault(delta["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += delta.get("id", "")
            call["name"] += delta["function"].get("name", "")
            call["arguments"] += delta["function"].get("arguments", "")
    return calls


@pytest.mark.parametrize("kind", ARGUMENTS)
async def test_streamed_arguments_are_those_of_the_whole_answer_in_every_dialect(kind: str) -> None:
    """Rows 13 to 17: two calls at once, to the last byte; ids and names come once."""
    wanted = [ARGUMENTS[kind], '{"k": 1}']
    text = f"{call_text('first', wanted[0])}\n{call_text('second', wanted[1])}"
    tools = [tool("first"), tool("second")]
    flat = [{"type": "function", "name": name} for name in ("first", "second")]
    schemas = [{"name": name, "input_schema": {}} for name in ("first", "second")]
    async with served(text, template=HERMES) as http:
        whole = await post(http, CHAT, {**ASK, "tools": tools})
        chunks = await post(http, CHAT, {**ASK, "tools": tools, "stream": True})
        items = await post(http, "/v1/responses", {"input": "Hi", "tools": flat, "stream": True})
        events = await post(
            http,
            "/v1/messages",
            {
                **ASK,
                "max_tokens": 500,
                "stream": True,
                "tools": schemas,
            },
        )
    assert [call["function"]["arguments"] for call in whole["choices"][0]["message"]["tool_calls"]] == wanted
    calls = chat_calls(chunks)
    assert [calls[index]["arguments"] for index in (0, 1)] == wanted
    assert [calls[index]["name"] for index in (0, 1)] == ["first", "second"]
    assert len({call["id"] for call in calls.values()}) == 2 and all(len(c["id"]) == 27 for c in calls.values())
    last = chunks[-1]["choices"][0]
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    responses = ["", ""]
    for item in items:
        if item["type"] == "response.function_call_arguments.delta":
            responses[item["output_index"]] += item["delta"]
    assert responses == wanted
    messages = ["", ""]
    for event in events:
        if event["type"] == "content_block_delta":
            messages[event["index"]] += event["delta"]["partial_json"]
    assert messages == wanted


STRICT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
async def test_a_name_and_arguments_of_one_engine_step_all_arrive(path: str) -> None:
    """Row 14, O35: a forced call is drafted many tokens a step; nothing of it is lost, doubled or null."""
    model = ScriptedModel.replying(call_text("add", '{"x": 1.5, "y": -2}'))
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {**ASK, "tools": [tool("add", STRICT)], "tool_choice": "required"},
        "/v1/responses": {
            "input": "Hi",
            "tools": [{"type": "function", "name": "add", "parameters": STRICT}],
            "tool_choice": "required",
        },
        "/v1/messages": {
            **ASK,
            "max_tokens": 200,
            "tools": [{"name": "add", "input_schema": STRICT}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        },
    }
    body = {**bodies[path], "temperature": 0, "stream": True}
    if path != "/v1/messages":
        body["parallel_tool_calls"] = False
    async with served(model, template=HERMES) as http:
        found = await post(http, path, body)
    if path == CHAT:
        (call,) = chat_calls(found).values()
        name, arguments = call["name"], call["arguments"]
        assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"
    elif path == "/v1/responses":
        arguments = "".join(each["delta"] for each in found if each["type"].endswith("arguments.delta"))
        (item,) = found[-1]["response"]["output"]
        name = item["name"]
        assert item["arguments"] == arguments
    else:
        arguments = "".join(each["delta"]["partial_json"] for each in found if each["type"] == "content_block_delta")
        (name,) = [each["content_block"]["name"] for each in found if each["type"] == "content_block_start"]
    assert (name, json.loads(arguments)) == ("add", {"x": 1.5, "y": -2})


async def test_sdks_put_a_streamed_call_together() -> None:
    """Rows 15 and 16: openai's and anthropic's own stream helpers, on the same call."""
    arguments = '{"code": "print(\\"é\\")", "n": [1, 2]}'
    async with served(f"Let me run it. {call_text('run', arguments)}", template=HERMES) as http:
        client = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0)
        async with client.chat.completions.stream(model="m", tools=[tool("run")], **ASK) as stream:  # type: ignore[arg-type]
            final = await stream.get_final_completion()
        (call,) = final.choices[0].message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("run", arguments)
        transport = httpx2.ASGITransport(app=http._transport.app)  # type: ignore[attr-defined]
        theirs = httpx2.AsyncClient(transport=transport)
        claude = anthropic.AsyncAnthropic(base_url="http://test", api_key="none", http_client=theirs, max_retries=0)
        tools: Any = [{"name": "run", "input_schema": {"type": "object"}}]
        async with claude.messages.stream(model="m", max_tokens=300, tools=tools, **ASK) as streamed:
            message = await streamed.get_final_message()
        whole = await claude.messages.create(model="m", max_tokens=300, tools=tools, **ASK)
    uses = [[block.input for block in each.content if block.type == "tool_use"] for each in (message, whole)]
    assert uses == [[json.loads(arguments)]] * 2


async def test_empty_contents_render_alike_and_parts_as_their_text() -> None:
    """Row 18."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "r"}

    async def prompt(http: httpx.AsyncClient, **content: Any) -> list[int]:
        messages = [*ASK["messages"], {"role": "assistant", "tool_calls": [call], **content}, result]
        await post(http, CHAT, {"messages": messages, "max_tokens": 1})
        return (await post(http, "/tokenize", {"messages": messages}))["tokens"]

    async with served("ok", template=HERMES) as http:
        empty = [await prompt(http, **each) for each in ({"content": None}, {"content": ""}, {}, {"content": []})]
        parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
        joined = [await prompt(http, content=each) for each in (parts, "one two")]
    assert all(each == empty[0] for each in empty)
    assert joined[0] == joined[1] != empty[0]


class Breaking:
    """An executor whose steps fail once `breaks` is set."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.steps_left = inner, 10**9

    def execute(self, plan: Any) -> Any:
        if plan.rows:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.steps_left = 10**9
                raise RuntimeError("the device fell off")
        return self.inner.execute(plan)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
async def test_a_failure_in_mid_stream_is_an_error_and_no_finish_reason(path: str) -> None:
    """Row 19."""
    made: list[Breaking] = []

    def wrap(inner: Any) -> Breaking:
        made.append(Breaking(inner))
        return made[0]

    body: dict[str, Any] = {"stream": True, "max_tokens": 50}
    body |= {"prompt": "x"} if path == "/v1/completions" else {"input": "x"} if path == "/v1/responses" else ASK
    async with served("word " * 20, wrap=wrap) as http:
        made[0].steps_left = 8
        found = await post(http, path, body)
        assert any("error" in block or block.get("type") in ("error", "response.failed") for block in found)
        reasons = [choice.get("finish_reason") for block in found for choice in block.get("choices", [])]
        assert set(reasons) <= {None}
        assert not any(block.get("type") in ("message_stop", "response.completed") for block in found)
        made[0].steps_left = 0
        whole = await http.post(path, json={**body, "stream": False})
        assert whole.status_code == 500 and "fell off" not in whole.text
        await post(http, path, {**body, "stream": False})


# Clients that go away (rows 21 to 23)
# --------------------------------------------------------------------------------------------------------------------


class Slow:
    """An executor whose steps take two milliseconds, so that a client can leave in the middle."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def execute(self, plan: Any) -> Any:
        time.sleep(0.002)
        return self.inner.execute(plan)


async def hang_up(app: Any, body: dict[str, Any], *, after_s: float | None = None, path: str = CHAT) -> list[bytes]:
    """One request by the rules of ASGI, whose client leaves after a while, or after the first piece of the answer."""
    sent: list[bytes] = []
    first, asked = asyncio.Event(), False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await (asyncio.sleep(after_s) if after_s is not None else first.wait())
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            sent.append(message["body"])
            first.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    await asyncio.wait_for(app(scope, receive, send), 10)
    return sent


async def quiet(client: Any) -> Any:
    """The engine's figures once nothing runs and nothing is open; soon, or the test fails."""
    for _ in range(200):
        statistics = await client.statistics()
        if statistics.num_running == statistics.num_waiting_prefill == statistics.num_branches == 0:
            return statistics
        await asyncio.sleep(0.005)
    raise AssertionError(statistics)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["decoding", "prefill", "queued"])
async def test_a_client_that_leaves_frees_everything_wherever_its_request_is(where: str, stream: bool) -> None:
    """Row 21; and row 23's figure: how long the oldest has waited."""
    prompt = "x" * (6000 if where == "prefill" else 10)
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    async with scripted_client(wrap=Slow, max_step_tokens=32, max_running=1) as client:
        app = make_app(client)
        ahead = asyncio.create_task(hang_up(app, {**body, "seed": 1}, after_s=0.2)) if where == "queued" else None
        await asyncio.sleep(0.03)
        leaving = asyncio.create_task(hang_up(app, body, after_s=0.06))
        await asyncio.sleep(0.03)
        statistics = await client.statistics()
        assert (statistics.oldest_waiting_s > 0) == (where == "queued")
        await leaving
        if ahead is not None:
            await ahead
        statistics = await quiet(client)
        assert statistics.leased_pages == 0
        assert statistics.free_pages + statistics.evictable_pages == statistics.total_pages
        assert statistics.generated_tokens_total < 200


async def test_two_hundred_streams_left_after_a_piece_leave_nothing() -> None:
    """Row 22."""
    body = {**ASK, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    async with scripted_client(max_running=4) as client:
        app = make_app(client)
        tasks_before = len(asyncio.all_tasks())
        for _ in range(20):
            await asyncio.gather(*(hang_up(app, {**body, "seed": seed}) for seed in range(10)))
        assert (await quiet(client)).leased_pages == 0
        assert len(asyncio.all_tasks()) <= tasks_before + 2
        answer = await hang_up(app, {**ASK, "max_tokens": 3}, after_s=5)
        assert json.loads(b"".join(answer))["usage"]["completion_tokens"] <= 3
        assert (
            await httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t").get("/health")
        ).is_success


# Text (rows 30 to 32), hostile numbers (36), grammars (39, 40)
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", range(1, 14))
async def test_a_character_cut_by_the_length_is_one_replacement_streamed_or_not(max_tokens: int) -> None:
    """Row 32: one byte a token."""
    body = {**ASK, "max_tokens": max_tokens}
    async with served("漢👩‍👧é") as http:
        whole = (await post(http, CHAT, body))["choices"][0]["message"]["content"]
        chunks = await post(http, CHAT, {**body, "stream": True})
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == whole == "漢👩‍👧é".encode()[:max_tokens].decode("utf-8", "replace")
    assert not any("\ufffd" in piece for piece in pieces[: -2 if whole.endswith("\ufffd") else None])


@pytest.mark.parametrize("stop", ["DEFGHIJ", "D", "JKL", "A"])
async def test_nothing_of_a_stop_string_is_streamed_and_nothing_else_is_kept_back(stop: str) -> None:
    """Rows 30 and 31, over HTTP."""
    text = "ABC DEF DEFGHIJKLM"
    async with served(text) as http:
        chunks = await post(http, CHAT, {**ASK, "stop": stop, "stream": True})
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text[: text.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}),
        ("guided_regex", "("),
        ("guided_regex", "foo**"),
        ("guided_grammar", "start: (a"),
    ],
)
async def test_a_grammar_that_can_not_be_is_400_and_the_next_request_is_fine(field: str, value: Any) -> None:
    """Row 39, O27, O28."""
    async with served("ok") as http:
        await post(http, CHAT, {**ASK, "guided_regex": "^(.*)$", "max_tokens": 5})
        began = asyncio.get_running_loop().time()
        error = (await post(http, CHAT, {**ASK, field: value}, 400))["error"]
        assert asyncio.get_running_loop().time() - began < 2
        assert error["type"] == "invalid_request_error" and error["param"]
        await post(http, CHAT, {**ASK, "guided_regex": "^(|.*)$", "max_tokens": 5})


async def test_a_bad_tool_among_many_is_named_with_its_keyword() -> None:
    """O30."""
    tools = [tool(f"tool_{n}", {"type": "object", "properties": {"a": {"type": "string"}}}) for n in range(34)]
    tools[20]["function"]["parameters"]["properties"]["a"] = {"type": "string", "pattern": "["}
    async with served("ok", template=HERMES) as http:
        error = (await post(http, CHAT, {**ASK, "tools": tools, "tool_choice": "required"}, 400))["error"]
    said = json.dumps(error)
    assert "/properties/a/pattern" in said and "tool_20" in said


async def test_two_hundred_objects_at_temperature_one_all_end() -> None:
    """Row 40: a model of noise, whose every token is as likely as any, would write blanks for ever if it could."""
    schema = '{"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x","y"]}},"required":["a","b"]}'
    text = JsonSchema(schema=schema.replace('"required"', '"additionalProperties":false,"required"'))
    vocabulary = Vocabulary.from_tokenizer(ByteTokenizer())
    async with scripted_client(grammars=lambda spec: compile(spec, vocabulary), num_pages=8192) as client:

        async def run(seed: int) -> tuple[str, str]:
            branch = await client.open(ProgramSpec())
            await client.extend(branch, [TextPiece("go: ")])
            sampling = Sampling(temperature=1.0, seed=seed)
            spec = GenerateSpec(grammar=text, sampling=sampling, max_tokens=400)
            events = [event async for event in client.generate(branch, spec)]
            return events[-1].reason, (await client.text(branch)).removeprefix("go: ")

        found = await asyncio.gather(*(run(seed) for seed in range(200)))
    assert {reason for reason, _ in found} == {"stop"}
    assert all(set(json.loads(written)) == {"a", "b"} and written.endswith("}") for _, written in found)


# Seen besides
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
async def test_a_prompt_beyond_the_context_is_400_everywhere(path: str) -> None:
    long = "x" * 500
    messages = [{"role": "user", "content": long}]
    bodies = {"/v1/completions": {"prompt": long}, "/v1/responses": {"input": long}}
    async with served("ok", context_length=300) as http:
        refused = await post(http, path, bodies.get(path, {"messages": messages, "max_tokens": 5}), 400)
        assert "300" in json.dumps(refused)
        assert (await post(http, CHAT, ASK))["choices"][0]["message"]["content"] == "ok"


async def test_a_template_that_writes_the_begin_token_has_one() -> None:
    template = "{{ bos_token }}" + HERMES
    async with served("ok", template=template) as http:
        tokens = (await post(http, "/tokenize", ASK))["tokens"]
        ids = (await post(http, CHAT, {**ASK, "return_token_ids": True, "max_tokens": 1}))["prompt_token_ids"]
    assert tokens.count(256) <= 1 and ids.count(256) <= 1


async def test_an_empty_prompt_is_refused_by_name_and_a_missing_one_begins_a_document() -> None:
    async with served("ok") as http:
        for prompt in ("", [], [[]], ["a", ""]):
            answer = await http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2})
            assert answer.status_code == 400
            assert "prompt" in answer.json()["error"]["param"] and "empty prompt" in answer.json()["error"]["message"]
        for body in ({"text": ""}, {"input_ids": []}):
            assert (await http.post("/generate", json=body)).status_code == 400
        assert (await http.post(CHAT, json={"messages": []})).status_code == 400
        begun = await post(http, "/v1/completions", {"max_tokens": 2})
        assert begun["usage"]["prompt_tokens"] == 1
        await post(http, CHAT, ASK)


def routes(config: ServeConfig) -> Iterator[tuple[str, str]]:
    app = make_app(scripted_client(), config)
    for path, verbs in app.openapi()["paths"].items():
        for verb in verbs:
            yield verb.upper(), path
    yield from (("GET", path) for path in ("/docs", "/openapi.json", "/metrics", "/"))


async def test_every_route_but_health_wants_the_key() -> None:
    config = ServeConfig(api_keys=("secret",))
    async with served("ok", config=config) as http:
        for verb, path in set(routes(config)):
            answer = await http.request(verb, path, json={})
            assert (path in ("/health", "/ready")) == (answer.status_code not in (401, 403)), (verb, path)


async def test_salts_share_no_cache() -> None:
    async with served("ok") as http:
        hits = [cached(await post(http, CHAT, {**ASK, "cache_salt": salt})) for salt in ("one", "two", "one")]
    assert hits[:2] == [0, 0] and hits[2] > 0


async def test_stored_responses_are_kept_and_the_oldest_go() -> None:
    async with served("ok", config=ServeConfig(max_stored_responses=3)) as http:
        ids = [(await post(http, "/v1/responses", {"input": "x", "store": True}))["id"] for _ in range(5)]
        found = [(await http.get(f"/v1/responses/{each}")).status_code for each in ids]
    assert found == [404, 404, 200, 200, 200]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "a\u0000b"])
async def test_names_are_never_paths(name: str) -> None:
    async with served("ok") as http:
        by_body = await http.post(CHAT, json={**ASK, "model": name, "session_id": name})
        by_path = [await http.get(f"/v1/{kind}/{name}") for kind in ("models", "responses")] if "\0" not in name else []
    for answer in [by_body, *by_path]:
        assert "root:" not in answer.text and ".py" not in answer.text and answer.status_code < 500


async def test_a_fork_before_any_text_and_a_picture_that_is_none() -> None:
    """Row 38: the fork works; a picture is refused by name and the server goes on."""
    async with scripted_client("ok") as client:
        branches = await client.fork(await client.open(ProgramSpec()), 3)
        spec = GenerateSpec(max_tokens=2)
        for branch in branches:
            await client.extend(branch, [TextPiece("Hi")])
            assert [event async for event in client.generate(branch, spec)][-1].reason in ("stop", "length")
    picture = {"type": "image_url", "image_url": {"url": "file:///no/such.png"}}
    async with served("ok") as http:
        answer = await http.post(CHAT, json={"messages": [{"role": "user", "content": [picture]}]})
        assert answer.status_code in (400, 501) and "image" in answer.text
        await post(http, CHAT, ASK)


def test_overflow_says_both_numbers() -> None:
    assert all(number in str(ContextOverflow(num_tokens=500, limit=300)) for number in ("500", "300"))
