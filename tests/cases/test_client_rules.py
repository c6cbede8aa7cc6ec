"""What every client in the wild needs at once: docs/known-failures.md, rules R1 to R20."""

import json
import sys
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from ramet.runtime.serve.config import ServeConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime" / "serve"))
from scripted import HERMES, listening, served

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT, RESPONSES, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: ASK,
    RESPONSES: {"input": "Hi"},
    MESSAGES: {**ASK, "max_tokens": 50},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 50},
}
IN_THE_WILD: dict[str, Any] = {
    "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "user": "u", "prompt_cache_key": "k",
    "prompt_cache_retention": "24h", "prompt_cache_options": {"x": 1}, "safety_identifier": "s", "verbosity": "low",
    "reasoning_effort": "low", "client_metadata": {"c": 1}, "include": [], "prediction": None, "tools": None,
    "seed": None, "logprobs": None, "nobody_knows_this": {"deep": [1, {"er": None}]},
}  # fmt: skip
CALLS = "".join(f'<tool_call>\n{{"name": "look", "arguments": {{"q": "{q}"}}}}\n</tool_call>' for q in ("a", "b"))
LOOK = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def events(answer: httpx.Response) -> list[Any]:
    """The data of a stream. Nothing but `data:`, `event:` and comments may stand there, and no block is empty (R9)."""
    found = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert not lines or len(data) == 1, block
        assert all(line.startswith(("data: ", "event: ")) for line in lines), block
        found += [json.loads(text) for text in data if text != "[DONE]"]
    return found


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, Any], **more: Any) -> Any:
    answer = await http.post(path, json=body, **more)
    assert answer.status_code == 200, answer.text
    return events(answer) if body.get("stream") else answer.json()


async def count(http: httpx.AsyncClient, messages: list[dict[str, Any]]) -> list[int]:
    answer = await http.post("/tokenize", json={"messages": messages})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["tokens"])


async def test_r2_either_header_carries_the_key_and_any_version_or_query_will_do() -> None:
    async with served("Hi", config=ServeConfig(api_keys=("k",))) as http:
        for headers in ({"authorization": "Bearer k"}, {"authorization": "bearer k"}, {"x-api-key": "k"}):
            more = {"anthropic-version": "2099-01-01", "anthropic-beta": "a,b", "openai-beta": "x"}
            await ask(http, f"{MESSAGES}?beta=true&what=ever", BODIES[MESSAGES], headers={**headers, **more})
        assert (await http.post(CHAT, json=ASK, headers={"x-api-key": "other"})).status_code == 401


@pytest.mark.parametrize("path", BODIES)
async def test_r3_what_clients_send_besides_is_ignored(path: str) -> None:
    async with served("Hello.") as http:
        plain, loaded = await ask(http, path, BODIES[path]), await ask(http, path, {**IN_THE_WILD, **BODIES[path]})
    said = {CHAT: "choices", COMPLETIONS: "choices", RESPONSES: "output", MESSAGES: "content"}[path]
    assert _without_ids(loaded[said]) == _without_ids(plain[said])


def _without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_ids(item) for item in value]
    return {k: _without_ids(v) for k, v in value.items() if k != "id"} if isinstance(value, dict) else value


async def test_r5_the_new_name_of_the_limit_wins_and_any_limit_is_clamped() -> None:
    async with served("x" * 100) as http:
        both = await ask(http, CHAT, {**ASK, "max_tokens": 9, "max_completion_tokens": 3})
        huge = await ask(http, MESSAGES, {**ASK, "max_tokens": 128_000})
    assert both["usage"]["completion_tokens"] == 3 and both["choices"][0]["finish_reason"] == "length"
    assert huge["stop_reason"] == "end_turn"


async def test_r6_r7_every_role_may_come_in_a_row_and_with_parts() -> None:
    roles = ["system", "developer", "developer", "user", "user", "assistant", "user"]
    texts = [{"role": role, "content": "one two"} for role in roles]
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]
    async with served("Fine.") as http:
        whole = await count(http, texts)
        assert whole == await count(http, [{"role": role, "content": parts} for role in roles])
        answer = await ask(http, CHAT, {"messages": [*texts, {"role": "function", "name": "f", "content": "7"}]})
    assert answer["choices"][0]["message"]["content"] == "Fine."


async def test_r6_a_template_that_demands_alternation_gets_merged_messages() -> None:
    messages = [{"role": role, "content": role} for role in ("user", "user", "assistant", "user", "user")]
    async with served("Fine.", template=ALTERNATES) as http:
        answer = await ask(http, CHAT, {"messages": messages})
    assert answer["choices"][0]["message"]["content"] == "Fine."


async def test_r8_arguments_of_the_past_keep_their_bytes_even_where_they_are_no_json() -> None:
    template = HERMES.replace("{{ call.function.arguments | tojson }}", "{{ call.function.arguments }}")
    function = {"name": "look", "arguments": '{"q":  "\\u00e9/é", "n": 1.50'}
    call = {"id": "c", "type": "function", "function": function}
    history = [*ASK["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
    async with served("Fine.", template=template) as http:
        answer = await ask(http, CHAT, {"messages": [*history, {"role": "tool", "tool_call_id": "c", "content": "x"}]})
        tokens = await count(http, history)
        text = (await http.post("/detokenize", json={"tokens": tokens})).json()["text"]
    assert answer["choices"][0]["message"]["content"] == "Fine."
    assert function["arguments"] in text


async def test_r9_a_silent_stream_is_kept_alive_by_comments_alone() -> None:
    class Slow:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def execute(self, plan: Any) -> Any:
            import time

            time.sleep(0.05)
            return self._inner.execute(plan)

    async with served("Hi", config=ServeConfig(keep_alive_s=0.01), wrap=Slow) as http:
        for path, body in BODIES.items():
            answer = await http.post(path, json={**body, "stream": True, "max_tokens": 3})
            assert "\n: keep-alive\n" in answer.text and events(answer)
            assert not any(line.startswith(("id:", "retry:")) for line in answer.text.split("\n"))


async def test_r10_to_r13_a_stream_of_chunks_keeps_its_form() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]
    async with served(CALLS, template=HERMES) as http:
        chunks = await ask(http, CHAT, {**ASK, "tools": tools, "n": 2, "stream": True})
    assert all(chunk["object"] == "chat.completion.chunk" and "usage" not in chunk for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len(choices) == len(chunks), "nobody asked for usage, so no chunk is without a choice (R11)"
    assert [choice["delta"] for choice in choices[:2]] == [{"role": "assistant", "content": ""}] * 2
    for number in (0, 1):
        mine = [choice for choice in choices if choice["index"] == number]
        assert mine[-1]["delta"] == {} and [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == [
            "tool_calls"
        ]
        deltas = [call for choice in mine for call in choice["delta"].get("tool_calls", ())]
        for call in (0, 1):
            first, *later = [delta for delta in deltas if delta["index"] == call]
            assert set(first) == {"index", "id", "type", "function"} and first["function"]["arguments"] == ""
            assert all(
                set(delta) == {"index", "function"} and set(delta["function"]) == {"arguments"} for delta in later
            )


async def test_r15_a_final_failure_says_that_a_retry_is_no_use() -> None:
    async with served("Hi") as http:
        for path, wrong in ((CHAT, {"temperature": -1}), (MESSAGES, {"temperature": -1})):
            answer = await http.post(path, json={**BODIES[path], **wrong})
            assert answer.status_code == 400 and answer.headers["x-should-retry"] == "false"
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error" and error["message"]
            assert ("param" in error) is (path == CHAT) and (answer.json().get("type") == "error") is (path == MESSAGES)


async def test_r16_r17_what_strict_clients_check_is_there() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]
    async with served(CALLS, template=HERMES) as http:
        answer = await ask(http, CHAT, {**ASK, "tools": tools})
    (choice,) = answer["choices"]
    assert isinstance(answer["id"], str) and type(answer["created"]) is int and isinstance(answer["model"], str)
    assert answer["object"] == "chat.completion" and type(choice["index"]) is int
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"] is None  # R18
    calls = choice["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == 2 and {call["type"] for call in calls} == {"function"}
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_cache_hit_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


THINKING = f"<think>\nHm.\n</think>\nLet me see.{CALLS}"


async def test_responses_come_in_the_order_that_all_clients_take() -> None:
    """Reasoning, words and two calls in one answer: every event of every item, ids that stay, one number each."""
    tools = [{"type": "function", "name": "look", "parameters": LOOK}]
    config = ServeConfig(reasoning_format="think")
    async with served(THINKING, template=HERMES, config=config) as http:
        found = await ask(http, RESPONSES, {"input": "Hi", "tools": tools, "stream": True})
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before] == [
        "created", "in_progress",
        "output_item.added", "reasoning_text.delta", "reasoning_text.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"] * 2,
        "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    final = found[-1]["response"]
    assert {event["response"]["id"] for event in found if "response" in event} == {final["id"]}
    for index, item in enumerate(final["output"]):
        mine = [event for event in found if event.get("output_index") == index]
        assert {event.get("item_id") or event["item"]["id"] for event in mine} == {item["id"]}
        assert mine[0]["item"].get("content", []) == [] and mine[0]["item"].get("arguments", "") == ""
        assert mine[-1]["item"] == item
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert set(final) >= {
        "id", "object", "created_at", "status", "error", "incomplete_details", "instructions", "max_output_tokens",
        "model", "output", "parallel_tool_calls", "previous_response_id", "reasoning", "store", "temperature", "text",
        "tool_choice", "tools", "top_p", "truncation", "usage", "metadata", "user",
    }  # fmt: skip


async def test_messages_come_in_the_order_that_all_clients_take() -> None:
    config = ServeConfig(reasoning_format="think")
    body = {**ASK, "max_tokens": 300, "tools": [{"name": "look", "input_schema": LOOK}], "stream": True}
    async with served(THINKING, template=HERMES, config=config) as http:
        answer = await http.post(MESSAGES, json=body)
    found = events(answer)
    assert [line.removeprefix("event: ") for line in answer.text.split("\n") if line.startswith("event: ")] == [
        event["type"] for event in found
    ]
    kinds = [event["type"] for event in found]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before] == [
        "message_start", *block * 4, "message_delta", "message_stop",
    ]  # fmt: skip
    begun = [event["content_block"] for event in found if event["type"] == "content_block_start"]
    assert [each["type"] for each in begun] == ["thinking", "text", "tool_use", "tool_use"]
    assert begun[1]["text"] == "" and begun[2]["input"] == {} and begun[0]["thinking"] == ""
    assert [event["index"] for event in found if event["type"] == "content_block_start"] == [0, 1, 2, 3]
    assert found[0]["message"]["content"] == [] and found[0]["message"]["usage"]["input_tokens"] >= 0
    assert found[-2]["delta"]["stop_reason"] == "tool_use" and found[-2]["usage"]["output_tokens"] > 0


def test_anthropics_stream_helper_takes_two_calls_of_two_tools() -> None:
    """Acceptance T3, on a socket."""
    said = "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {{"q": "{name} é"}}}}\n</tool_call>'
        for name in ("look", "find")
    )
    tools: Any = [{"name": name, "input_schema": LOOK} for name in ("look", "find")]
    with (
        listening(said, template=HERMES) as base,
        anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=300, tools=tools, messages=ASK["messages"]) as stream,
    ):
        message = stream.get_final_message()
    uses = [block for block in message.content if block.type == "tool_use"]
    assert [(use.name, use.input) for use in uses] == [("look", {"q": "look é"}), ("find", {"q": "find é"})]
    assert uses[0].id != uses[1].id and message.stop_reason == "tool_use"
