"""Every dialect over a scripted model: streamed and whole say the same, and errors speak the client's language."""

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramet.runtime.serve.config import ServeConfig

sys.path.insert(0, str(Path(__file__).parent))
from scripted import HERMES, byte_tokenizer, served

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "n": {"type": "number"}},
            "required": ["city"],
        },
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Zürich", "n": 1.50}}\n</tool_call>'
ARGUMENTS = '{"city":"Zürich", "n": 1.50}'


def events(text: str) -> list[Any]:
    """The data of an SSE body; nothing but data, event and comment lines may be there."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        assert all(line.startswith(("data: ", "event: ")) for line in lines), block
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert len(data) == 1, block
        found.append(data[0] if data[0] == "[DONE]" else json.loads(data[0]))
    return found


async def post(http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int = 200, **kwargs: Any) -> Any:
    answer = await http.post(path, json=body, **kwargs)
    assert answer.status_code == status, answer.text
    return events(answer.text) if body.get("stream") and status == 200 else answer.json()


async def test_chat_whole_and_streamed_say_the_same() -> None:
    async with served("Grüezi 👩‍👩‍👧!") as http:
        whole = await post(http, "/v1/chat/completions", ASK)
        assert whole["choices"][0]["message"]["content"] == "Grüezi 👩‍👩‍👧!"
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert whole["object"] == "chat.completion" and isinstance(whole["created"], int)
        chunks = await post(
            http, "/v1/chat/completions", {**ASK, "stream": True, "stream_options": {"include_usage": True}}
        )
    assert chunks[-1] == "[DONE]"
    usage, body = chunks[-2], chunks[:-2]
    assert usage["choices"] == [] and usage["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert body[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert body[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in body) == "Grüezi 👩‍👩‍👧!"
    assert all(c["object"] == "chat.completion.chunk" and c["choices"][0]["finish_reason"] is None for c in body[:-1])


async def test_n_choices_begin_in_order() -> None:
    async with served() as http:
        chunks = await post(http, "/v1/chat/completions", {**ASK, "n": 3, "max_tokens": 5, "seed": 1, "stream": True})
        assert [c["choices"][0]["index"] for c in chunks[:3]] == [0, 1, 2]
        whole = await post(http, "/v1/chat/completions", {**ASK, "n": 3, "max_tokens": 5, "seed": 1})
    for index in range(3):
        mine = [c["choices"][0]["delta"].get("content", "") for c in chunks[:-1] if c["choices"][0]["index"] == index]
        assert "".join(mine) == whole["choices"][index]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == 15
    assert len({choice["message"]["content"] for choice in whole["choices"]}) == 3


async def test_tool_call_streamed_equals_whole_and_repeats_no_name() -> None:
    async with served(CALL, template=HERMES) as http:
        whole = await post(http, "/v1/chat/completions", {**ASK, "tools": [WEATHER]})
        chunks = await post(http, "/v1/chat/completions", {**ASK, "tools": [WEATHER], "stream": True})
    message = whole["choices"][0]["message"]
    assert message["content"] is None and whole["choices"][0]["finish_reason"] == "tool_calls"
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    deltas = [
        c["choices"][0]["delta"]["tool_calls"][0] for c in chunks[:-1] if "tool_calls" in c["choices"][0]["delta"]
    ]
    assert deltas[0]["type"] == "function" and deltas[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert deltas[0]["id"].startswith("call_")
    assert all(set(d) == {"index", "function"} and set(d["function"]) == {"arguments"} for d in deltas[1:])
    assert "".join(d["function"]["arguments"] for d in deltas) == ARGUMENTS
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("arguments", [ARGUMENTS, '{"n":1.5,"city":"Zürich"}', '{"city": "Z\\u00fcrich", "n": 1.5}'])
async def test_an_echoed_call_hits_to_the_last_token(arguments: str) -> None:
    """Case list, rows 5 and 6: whatever the client does to the JSON, the second turn finds all that was generated."""
    async with served(CALL, template=HERMES) as http:
        first = await post(http, "/v1/chat/completions", {**ASK, "tools": [WEATHER]})
        call = first["choices"][0]["message"]["tool_calls"][0]
        call["function"]["arguments"] = arguments
        history = [
            *ASK["messages"],
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
        ]
        second = await post(http, "/v1/chat/completions", {"messages": history, "tools": [WEATHER], "explain": True})
    reusable = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= reusable - 1


@pytest.mark.parametrize("arguments", [ARGUMENTS, '{"n":1.5,"city":"Zürich"}'])
async def test_an_echoed_call_hits_where_the_template_knows_no_calls(arguments: str) -> None:
    """The call is the assistant's words in the prompt, but it comes back as a call, and is known as one."""
    spaced = '{"name": "get_weather", "arguments": {"city":  "Zürich", "n": 1.50}}'
    async with served(spaced) as http:
        first = await post(http, "/v1/chat/completions", {**ASK, "tools": [WEATHER]})
        call = first["choices"][0]["message"]["tool_calls"][0]
        call["function"]["arguments"] = arguments
        history = [
            *ASK["messages"],
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
        ]
        second = await post(http, "/v1/chat/completions", {"messages": history, "tools": [WEATHER]})
    reusable = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= reusable - 1


@pytest.mark.parametrize("template", [None, HERMES], ids=["json", "hermes"])
async def test_choice_none_gets_words_and_finds_the_head(template: str | None) -> None:
    """A last answer without tools is the commonest end of an agent's turn: its prompt is that of the turns before."""
    say = CALL if template else '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
    async with served(say, template=template) as http:
        body = {**ASK, "tools": [WEATHER], "max_tokens": 40}
        first = await post(http, "/v1/chat/completions", body)
        second = await post(http, "/v1/chat/completions", {**body, "tool_choice": "none"})
    assert first["choices"][0]["message"].get("tool_calls")
    message = second["choices"][0]["message"]
    assert not message.get("tool_calls") and "<tool_call>" not in message["content"]
    assert not message["content"].lstrip().startswith("{")
    assert second["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 1


async def test_a_template_of_its_own_for_tools_is_taken_where_there_are_tools() -> None:
    """Some models have two: the named one decides the format of calls too."""
    plain = HERMES.replace("{% if tools %}", "{% if false %}").replace("<tool_call>", "<never>")
    async with served(CALL, template=plain, tool_template=HERMES) as http:
        asked = await post(http, "/v1/chat/completions", {**ASK, "tools": [WEATHER], "return_token_ids": True})
        talked = await post(http, "/v1/chat/completions", {**ASK, "return_token_ids": True})
    assert asked["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS
    spelled = [byte_tokenizer().decode(answer["prompt_token_ids"]) for answer in (asked, talked)]
    assert "get_weather" in spelled[0] and "get_weather" not in spelled[1]


@pytest.mark.parametrize(("tags", "broken"), [('["a", "a"]', 1), ('["a", "b"]', 0)])
async def test_what_the_grammar_deferred_is_judged_at_the_end(tags: str, broken: int) -> None:
    """No grammar holds `uniqueItems` over free strings: a tool that is not strict has it anyway, and hears of it."""
    schema = {"type": "object", "properties": {"tags": {"items": {"type": "string"}, "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "tag", "parameters": {**schema, "required": ["tags"]}}}
    say = f'<tool_call>\n{{"name": "tag", "arguments": {{"tags": {tags}}}}}\n</tool_call>'
    async with served(say, template=HERMES) as http:
        body = {**ASK, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
        answer = await post(http, "/v1/chat/completions", body)
        tool["function"]["strict"] = True
        refused = await post(http, "/v1/chat/completions", body, 400)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert "deferred" in {entry["status"] for entry in answer["ledger"]}
    assert [(found["id"], found["tool"]) for found in answer["violations"]] == [(call["id"], "tag")] * broken
    assert "uniqueItems" in refused["error"]["message"]


@pytest.mark.parametrize(("answer", "broken"), [('["a", "a"]', ["/uniqueItems"]), ('["a", "b"]', [])])
async def test_a_declared_schema_is_judged_at_the_end(answer: str, broken: list[str]) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with served(answer) as http:
        refused = await post(http, "/v1/chat/completions", {**ASK, "response_format": wanted}, 400)
        body = {**ASK, "response_format": wanted, "json_options": {"unsupported": "declare"}}
        told = await post(http, "/v1/chat/completions", body)
    assert "uniqueItems" in refused["error"]["message"]
    assert [found["pointer"] for found in told["violations"]] == broken


TAGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
DEEP = {"type": "object", "properties": {"a": {"type": "array", "items": TAGS}}, "required": ["a"]}
DECLARE = {"json_options": {"unsupported": "declare", "whitespace": "compact"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}}


def _declaring(path: str) -> dict[str, Any]:
    """A request for DEEP, with what no grammar can hold left to the end."""
    match path:
        case "/generate":
            return {"text": "Hi", "sampling_params": {"json_schema": DEEP, "max_new_tokens": 60, **DECLARE}}
        case "/v1/responses":
            return {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": DEEP}}, **DECLARE}
        case "/v1/messages":
            return {**ASK, "max_tokens": 60, "output_format": {"type": "json_schema", "schema": DEEP}, **DECLARE}
        case "/v1/completions":
            return {"prompt": "Hi", "max_tokens": 60, "response_format": FORMAT, **DECLARE}
        case _:
            return {**ASK, "response_format": FORMAT, **DECLARE}


def _notes(answer: Any) -> dict[str, Any]:
    """The answer, the final response or the meta_info: whatever of it holds the account."""
    blocks = [block for block in (answer if isinstance(answer, list) else [answer]) if isinstance(block, dict)]
    places = [place for block in blocks for place in (block, block.get("response"), block.get("meta_info")) if place]
    return next(place for place in places if "violations" in place)


DIALECTS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", DIALECTS)
async def test_what_a_declared_schema_deferred_is_told_in_every_dialect(path: str, stream: bool) -> None:
    for said, broken in (('{"a":[["x"],["y","y"]]}', True), ('{"a":[["x"],["y","z"]]}', False)):
        async with served(said) as http:
            notes = _notes(await post(http, path, {**_declaring(path), "stream": stream}))
        failing = {"pointer": "/properties/a/items/uniqueItems", "at": "/a/1", "part": 0, "choice": 0}
        assert notes["violations"] == ([failing] if broken else [])
        assert "deferred" in {entry["status"] for entry in notes["ledger"]}


async def test_violations_of_each_choice_and_in_a_usage_chunk() -> None:
    body = {**_declaring("/v1/chat/completions"), "n": 2}
    async with served('{"a":[["y","y"]]}') as http:
        whole = await post(http, "/v1/chat/completions", body)
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        chunks = await post(http, "/v1/chat/completions", asked)
    assert [found["choice"] for found in whole["violations"]] == [0, 1]
    assert chunks[-2]["violations"] == whole["violations"] and "violations" not in chunks[-3]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_violations_name_the_call_in_every_dialect(path: str, stream: bool) -> None:
    function = {"name": "tag", "parameters": {"type": "object", "properties": {"t": TAGS}, "required": ["t"]}}
    tools = {
        "/v1/chat/completions": {"type": "function", "function": function},
        "/v1/responses": {"type": "function", **function},
        "/v1/messages": {"name": "tag", "input_schema": function["parameters"]},
    }
    body: dict[str, Any] = {"tools": [tools[path]], "stream": stream, "max_tokens": 300}
    body |= {"input": "Hi"} if path == "/v1/responses" else ASK
    calls = "\n".join(
        f'<tool_call>\n{{"name": "tag", "arguments": {{"t": {tags}}}}}\n</tool_call>'
        for tags in ('["a"]', '["b", "b"]')
    )
    async with served(calls, template=HERMES) as http:
        notes = _notes(await post(http, path, body))
    (broken,) = notes["violations"]
    assert (broken["tool"], broken["part"], broken["at"]) == ("tag", 1, "/t")
    assert broken["pointer"] == "/properties/t/uniqueItems" and broken["id"]


async def test_violations_reach_a_program_over_http() -> None:
    grammar = {"type": "json_schema", "schema": json.dumps(DEEP), "unsupported": "declare"}
    items = [{"type": "literal", "text": "<"}, grammar, {"type": "literal", "text": ">"}]
    async with served('<{"a":[["y","y"]]}>') as http:
        opened = await post(http, "/v1/programs", {})
        base = f"/v1/programs/{opened['program_id']}/branches/{opened['branch_id']}"
        await post(http, f"{base}/extend", {"pieces": [{"type": "text", "text": "Hi"}]})
        body = {"max_tokens": 40, "grammar": {"type": "sequence", "items": items}}
        answer = await http.post(f"{base}/generate", json=body)
    last = events(answer.text)[-1]
    assert last["type"] == "finished"
    assert last["violations"] == [{"part": 0, "pointer": "/properties/a/items/uniqueItems", "at": "/a/0"}]


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_timings_stand_in_every_answer_that_asks(path: str, stream: bool) -> None:
    body = {**_declaring(path), "return_timings": True, "stream": stream}
    async with served('{"a":[]}') as http:
        timings = _notes(await post(http, path, body))["timings"]
    assert timings["prefill_ms"] >= 0 and timings["decode_ms"] >= 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/completions", "/generate"])
async def test_keys_come_in_any_order_where_a_request_or_the_server_says_so(path: str) -> None:
    """The model says `b` first: the declared order makes it write `a` before."""
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    free = {"json_options": {"any_order": True, "whitespace": "compact"}}
    compact = {"json_options": {"whitespace": "compact"}}
    body: dict[str, Any] = {**ASK, "response_format": wanted, "max_tokens": 60}
    if path == "/v1/responses":
        body = {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}
    elif path == "/v1/completions":
        body = {"prompt": "Hi", "response_format": wanted, "max_tokens": 60}

    def asked(options: dict[str, Any]) -> dict[str, Any]:
        if path != "/generate":
            return {**body, **options}
        return {"text": "Hi", "sampling_params": {"json_schema": schema, "max_new_tokens": 60, **options}}

    said = '{"b":2,"a":1}'
    async with served(said) as http:
        texts = [json.dumps(await post(http, path, asked(options))) for options in (free, compact)]
        bad = await post(http, path, asked({"json_options": {"order": "any"}}), 400)
    async with served(said, config=ServeConfig(any_order=True)) as http:
        texts.append(json.dumps(await post(http, path, asked(compact))))
    inside = json.dumps(said)[1:-1]
    assert [inside in text for text in texts] == [True, False, True]
    assert bad["error"]["param"].endswith("json_options")


async def test_a_template_from_a_client_is_a_program_and_needs_trust() -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    piece = {"type": "messages", "messages": ASK["messages"], "chat_template": endless}
    async with served("ok") as http:
        refused = await post(http, "/v1/chat/completions", {**ASK, "chat_template": endless}, 400)
        program = (await post(http, "/v1/programs", {}))["program_id"]
        there = await post(http, f"/v1/programs/{program}/branches/0/extend", {"pieces": [piece]}, 400)
    assert refused["error"]["param"] == "chat_template" and "--request-templates" in refused["error"]["message"]
    assert there["error"]["param"] == "pieces[0].chat_template"
    async with served("ok", config=ServeConfig(request_templates=True)) as http:
        body = {**ASK, "chat_template": "just this", "return_token_ids": True}
        answer = await post(http, "/v1/chat/completions", body)
    assert byte_tokenizer().decode(answer["prompt_token_ids"]) == "just this"


async def test_token_ids_beyond_any_integer_are_refused_by_place() -> None:
    """Found by schemathesis."""
    async with served("ok") as http:
        refused = await post(http, "/generate", {"input_ids": [1, -(2**79)]}, 400)
    assert refused["error"]["param"] == "input_ids[1]"


async def test_tokenizer_info_is_what_clients_without_a_tokenizer_ask() -> None:
    async with served(template=HERMES) as http:
        info = (await http.get("/tokenizer_info")).json()
        ids = await post(http, "/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False})
    assert len(ids["tokens"]) == 1 and info["chat_template"] == HERMES and "bos_token" in info


async def test_two_calls_have_their_own_ids_and_indices() -> None:
    async with served(f"{CALL}\n{CALL}", template=HERMES) as http:
        chunks = await post(http, "/v1/chat/completions", {**ASK, "tools": [WEATHER], "stream": True})
    begins = [d for c in chunks[:-1] for d in c["choices"][0]["delta"].get("tool_calls", []) if "id" in d]
    assert [d["index"] for d in begins] == [0, 1] and begins[0]["id"] != begins[1]["id"]


async def test_free_text_stays_free_and_calls_obey_their_schema() -> None:
    """`tool_choice: auto` with a format that has a trigger: only what follows the trigger is held to the schema."""
    bad = CALL.replace('"Zürich"', "7")
    async with served(f"Braces {{}} and <tags> are text. {bad}", template=HERMES) as http:
        message = (await post(http, "/v1/chat/completions", {**ASK, "tools": [WEATHER], "max_tokens": 120}))["choices"][
            0
        ]["message"]
    assert (message["content"] or "").startswith("Braces {} and <tags> are text.")
    assert '"city":7' not in message["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("stream", [False, True])
async def test_required_and_named_choices_force_one_call(stream: bool) -> None:
    async with served("I would rather talk.", template=HERMES) as http:
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            body = {**ASK, "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False, "stream": stream}
            answer = await post(http, "/v1/chat/completions", {**body, "max_tokens": 2000})
            deltas = [
                c["choices"][0].get("delta", c["choices"][0].get("message"))
                for c in (answer[:-1] if stream else [answer])
            ]
            calls = [call for delta in deltas for call in delta.get("tool_calls") or []]
            assert [call["function"]["name"] for call in calls if call["function"].get("name")] == ["get_weather"]
            arguments = json.loads("".join(call["function"]["arguments"] for call in calls))
            assert isinstance(arguments["city"], str)


async def test_json_schema_answers_obey_and_bad_schemas_are_refused_with_their_pointer() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with served("7 is no object") as http:
        body = {**ASK, "response_format": form, "max_tokens": 200}
        text = (await post(http, "/v1/chat/completions", body))["choices"][0]["message"]["content"]
        assert set(json.loads(text)) == {"a"}
        form["json_schema"]["schema"] = {"type": "objec"}
        refused = await post(http, "/v1/chat/completions", body, 400)
        assert "objec" in refused["error"]["message"]


async def test_anthropic_blocks_and_usage() -> None:
    body = {
        "max_tokens": 200,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "Be kind."},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "tools": [{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}],
    }
    async with served(f"Let me see. {CALL}", template=HERMES) as http:
        whole = await post(http, "/v1/messages?beta=true", body)
        streamed = await post(http, "/v1/messages", {**body, "stream": True})
        counted = await post(http, "/v1/messages/count_tokens", {k: v for k, v in body.items() if k != "max_tokens"})
    text, use = whole["content"]
    assert (text["type"], text["text"].strip()) == ("text", "Let me see.")
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "get_weather", {"city": "Zürich", "n": 1.5})
    assert whole["stop_reason"] == "tool_use" and use["id"].startswith("toolu_")
    usage = whole["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["input_tokens"]
    kinds = [event["type"] for event in streamed]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    json_text = "".join(e["delta"].get("partial_json", "") for e in streamed if e["type"] == "content_block_delta")
    assert json_text == ARGUMENTS
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2


async def test_a_changed_nonce_still_hits() -> None:
    """Case list, row 8."""

    def body(nonce: str) -> dict[str, Any]:
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={nonce};"},
            {"type": "text", "text": "Long " * 50},
        ]
        return {"max_tokens": 4, "system": system, "messages": [{"role": "user", "content": "Hi"}]}

    async with served("ok") as http:
        await post(http, "/v1/messages", body("a1"))
        second = await post(http, "/v1/messages", body("b2"))
    assert second["usage"]["cache_read_input_tokens"] > 200


async def test_responses_events_and_continuation() -> None:
    async with served(["One.", "Two.", "Two."]) as http:
        streamed = await post(http, "/v1/responses", {"input": "Hi", "stream": True})
        first = streamed[-1]["response"]
        follow = {"input": "More", "previous_response_id": first["id"]}
        second = await post(http, "/v1/responses", follow)
        got = (await http.get(f"/v1/responses/{first['id']}")).json()
        inputs = (await http.get(f"/v1/responses/{second['id']}/input_items")).json()
        await http.delete(f"/v1/responses/{first['id']}")
        gone = await http.get(f"/v1/responses/{first['id']}")
        lost = await http.post("/v1/responses", json=follow)
    kinds = [event["type"].removeprefix("response.") for event in streamed]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
    assert got == first and first["output"][0]["content"][0]["text"] == "One."
    assert second["output"][0]["content"][0]["text"] == "Two."
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0
    assert [item["role"] for item in inputs["data"]] == ["user", "assistant", "user"]
    assert gone.status_code == 404 and lost.status_code == 404


async def test_responses_accepts_bare_items_and_unknown_tools() -> None:
    """Case list, row 20; Codex's items."""
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    tools = [{"type": "web_search"}, {"type": "function", "name": "get_weather", "parameters": {}, "strict": False}]
    body = {"input": items, "tools": tools, "store": False, "include": ["reasoning.encrypted_content"]}
    async with served("Fine.") as http:
        answer = await post(http, "/v1/responses", body)
        assert answer["output"][0]["content"][0]["text"] == "Fine."
        assert (await http.get(f"/v1/responses/{answer['id']}")).status_code == 404


async def test_completions_lists_echo_and_logprobs() -> None:
    async with served() as http:
        body = {"prompt": ["ab", "cde"], "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
        cold = await post(http, "/v1/completions", body)
        warm = await post(http, "/v1/completions", body)
        ids = await post(http, "/v1/completions", {**body, "prompt": [[97, 98], [99, 100, 101]]})
    for answer in (cold, warm, ids):
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [3, 4]
        assert all(choice["logprobs"]["token_logprobs"][0] is None for choice in answer["choices"])
        assert answer["choices"][0]["text"].startswith("ab")
    assert cold["choices"] == warm["choices"] == ids["choices"]


async def test_bad_requests_speak_the_dialect_and_harm_nobody() -> None:
    async with served("ok") as http:
        over = await post(http, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 9000}]}, 400)
        assert over["error"]["code"] == "context_length_exceeded"
        temperature = await post(http, "/v1/chat/completions", {**ASK, "temperature": -1}, 400)
        assert temperature["error"]["param"] == "temperature"
        anthropic = await post(http, "/v1/messages", {"messages": []}, 400)
        assert anthropic["type"] == "error" and anthropic["error"]["type"] == "invalid_request_error"
        assert (await http.post("/v1/chat/completions", content=b"{")).status_code == 400
        missing = await http.get("/nowhere")
        assert missing.status_code == 404 and missing.json()["error"]["code"] == "not_found"
        assert (await http.get("/v1/chat/completions")).status_code == 405
        assert (await post(http, "/v1/completions", {"prompt": "a", "suffix": "b"}, 400))["error"][
            "code"
        ] == "not_implemented"
        assert (await post(http, "/v1/chat/completions", ASK))["choices"][0]["message"]["content"] == "ok"


async def test_odd_numbers_in_paths_and_bodies_are_refused_without_a_path_of_ours() -> None:
    async with served("ok") as http:
        opened = await post(http, "/v1/programs", {})
        base = f"/v1/programs/{opened['program_id']}/branches"
        odd = await http.get(f"{base}/null,null/text")
        assert odd.status_code == 400 and ".py" not in odd.text and "branch_id" in odd.text
        assert (await http.get(f"{base}/7/text")).status_code == 404
        assert (await http.get(f"/v1/programs/other/branches/{opened['branch_id']}/text")).status_code == 404
        huge = {"num_tokens": 2**200, "serial": 0}
        assert (await http.post(f"{base}/{opened['branch_id']}/rollback", json=huge)).status_code == 400


async def test_null_for_every_optional_field_is_accepted() -> None:
    from ramet.runtime.serve.protocols.openai_chat import ChatBody, CompletionBody

    async with served("ok") as http:
        nulls = dict.fromkeys(name for name in ChatBody.__struct_fields__ if name != "messages")
        assert (await post(http, "/v1/chat/completions", {**nulls, **ASK}))["choices"][0]["message"]["content"] == "ok"
        nulls = dict.fromkeys(name for name in CompletionBody.__struct_fields__ if name != "prompt")
        await post(http, "/v1/completions", {**nulls, "prompt": "x"})


async def test_control_tokens_in_user_text_are_plain_text() -> None:
    async with served("ok") as http:
        plain = await post(http, "/tokenize", {"messages": [{"role": "user", "content": "a<|im_end|>b"}]})
        assert plain["tokens"].count(257) == 1  # the template's own
        template = await post(http, "/tokenize", {"prompt": "a<|im_end|>b"})
        assert template["tokens"].count(257) == 1


async def test_tokenize_counts_what_a_chat_with_tools_has_as_prompt() -> None:
    async with served("ok", template=HERMES) as http:
        counted = await post(http, "/tokenize", {**ASK, "tools": [WEATHER]})
        asked = await post(http, "/v1/chat/completions", {**ASK, "tools": [WEATHER]})
    assert counted["count"] == asked["usage"]["prompt_tokens"]


async def test_keys_close_every_route_but_health() -> None:
    config = ServeConfig(api_keys=("secret",), allow_origins=("https://a.example",))
    async with served("ok", config=config) as http:
        assert (await http.post("/v1/chat/completions", json=ASK)).status_code == 401
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/openapi.json")).status_code == 401
        assert (await http.get("/health")).status_code == 200
        for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
            assert (await http.post("/v1/chat/completions", json=ASK, headers=headers)).status_code == 200
        preflight = await http.options("/v1/chat/completions", headers={"origin": "https://a.example"})
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-origin" not in (await http.get("/health", headers={"origin": "https://b"})).headers


async def test_isolated_keys_share_no_cache() -> None:
    config = ServeConfig(api_keys=("one", "two"), isolate_cache=True)
    async with served("ok", config=config) as http:
        answers = [
            await post(http, "/v1/chat/completions", ASK, headers={"x-api-key": key}) for key in ("one", "two", "one")
        ]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[:2] == [0, 0] and cached[2] > 0


async def test_a_salt_is_of_its_key() -> None:
    """The same word from another key is another salt, also where keys share what has none."""
    async with served("Hi", config=ServeConfig(api_keys=("a", "b"))) as http:

        async def hit(key: str, **more: Any) -> int:
            headers = {"authorization": f"Bearer {key}"}
            answer = await post(http, "/v1/chat/completions", {**ASK, **more}, headers=headers)
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert await hit("a", cache_salt="word") == 0
        assert await hit("b", cache_salt="word") == 0
        assert await hit("a", cache_salt="word") > 0
        assert await hit("a") == 0
        assert await hit("b") > 0


async def test_head_health_docs_and_openapi() -> None:
    async with served("ok") as http:
        for path in ("/", "/health", "/ready", "/v1/models"):
            assert (await http.head(path)).status_code == 200
        document = (await http.get("/openapi.json")).json()
        assert "ChatBody" in document["components"]["schemas"]
        assert "/v1/messages" in (await http.get("/docs")).text
        assert "ramet_kv_tokens" in (await http.get("/metrics")).text


async def test_stop_strings_cut_the_text() -> None:
    async with served("one two three") as http:
        for stop in ("two", ["x", "two"], ["two", None, ""]):
            whole = await post(http, "/v1/chat/completions", {**ASK, "stop": stop})
            assert whole["choices"][0]["message"]["content"] == "one "
            assert whole["choices"][0]["finish_reason"] == "stop"


STYLES: dict[str, tuple[Any, Any]] = {
    "exact (openai-agents, llama-index, crewai)": (lambda text: text, None),
    "compact (pydantic-ai)": (
        lambda text: json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")),
        None,
    ),
    "compact, empty content (opencode)": (lambda text: json.dumps(json.loads(text), separators=(",", ":")), ""),
    "spaced, not escaped (langchain, haystack)": (lambda text: json.dumps(json.loads(text), ensure_ascii=False), None),
    "spaced, escaped (ag2)": (lambda text: json.dumps(json.loads(text)), None),
    "sorted keys": (lambda text: json.dumps(json.loads(text), sort_keys=True), []),
}


@pytest.mark.parametrize("style", STYLES)
async def test_six_turns_hit_whatever_the_client_does_to_the_json(style: str) -> None:
    """Acceptance T8 in the wire forms of clients.md section 7: at every turn, 90 % of what could be reused is."""
    dump, content = STYLES[style]
    history: list[Any] = [{"role": "user", "content": "What is the weather? " + "Think of the mountains. " * 10}]
    reusable = 0
    async with served([CALL] * 6, template=HERMES, num_pages=4096) as http:
        for turn in range(6):
            answer = await post(http, "/v1/chat/completions", {"messages": history, "tools": [WEATHER]})
            usage = answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached >= 0.9 * reusable, f"turn {turn}: {cached} of {reusable}"
            reusable = usage["prompt_tokens"] + usage["completion_tokens"] - 1
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            function = {"name": call["function"]["name"], "arguments": dump(call["function"]["arguments"])}
            history += [
                {"role": "assistant", "content": content, "tool_calls": [{**call, "function": function}]},
                {"role": "tool", "tool_call_id": call["id"], "content": f"sunny, reading {turn}"},
            ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
async def test_reasoning_is_split_off_and_accepted_back_under_every_name(name: str) -> None:
    """Case list, row 11."""
    template = HERMES.replace(
        "{{ message.content }}", "<think>{{ message.reasoning_content }}</think>{{ message.content }}"
    )
    async with served("<think>\nHm.\n</think>\n\nYes.", template=template) as http:
        first = (await post(http, "/v1/chat/completions", ASK))["choices"][0]["message"]
        assert (first["reasoning_content"], first["content"]) == ("Hm.\n", "Yes.")
        tokens = [
            (await post(http, "/tokenize", {"messages": [{"role": "assistant", "content": "x", key: "deep"}]}))["count"]
            for key in (name, "nothing")
        ]
    assert tokens[0] == tokens[1] + len("deep")


async def test_a_template_that_rewrites_history_still_answers_and_keeps_the_head() -> None:
    """Case list, rows 1 to 3: thoughts vanish from history, the last message is marked; never an error."""
    flips = (
        "{% for m in messages %}<|im_start|>{{ m.role }}{{ ' last' if loop.last }}\n"
        "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    head = {"role": "system", "content": "You are kind. " * 20}
    async with served("<think>Long thoughts.</think>Yes.", template=flips) as http:
        messages = [head, {"role": "user", "content": "Hi"}]
        first = await post(http, "/v1/chat/completions", {"messages": messages})
        messages += [
            {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
            {"role": "user", "content": "So?"},
        ]
        second = await post(http, "/v1/chat/completions", {"messages": messages, "explain": True})
        cold = await post(http, "/v1/chat/completions", {"messages": messages, "cache_salt": "other"})
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(head["content"])
    assert second["choices"][0]["message"] == cold["choices"][0]["message"]


async def test_finish_reasons_are_the_four_that_clients_know() -> None:
    """Case list, row 19."""
    async with served("word " * 50) as http:
        length = await post(http, "/v1/chat/completions", {**ASK, "max_tokens": 3})
        stop = await post(http, "/v1/chat/completions", {**ASK, "stop": "word w"})
        refused = await post(http, "/v1/chat/completions", {**ASK, "max_tokens": -1}, 400)
        completion = await post(http, "/v1/completions", {"prompt": "x", "max_tokens": 3})
    assert length["choices"][0]["finish_reason"] == "length"
    assert stop["choices"][0]["finish_reason"] == "stop"
    assert completion["choices"][0]["finish_reason"] == "length"
    assert refused["error"]["param"] == "max_tokens"


async def test_a_completion_sent_on_is_spliced_to_the_token() -> None:
    """Case list, row 4: prompt and answer come back as the beginning of a longer text."""
    prompt = "This prompt is long enough to be known again by its beginning. "
    async with served() as http:
        for stream in (False, True):
            body = {"prompt": prompt + str(stream), "max_tokens": 12, "temperature": 0}
            whole = await post(http, "/v1/completions", body)
            if stream:
                await post(http, "/v1/completions", {**body, "stream": True})
            text = body["prompt"] + whole["choices"][0]["text"] + " and then"
            again = await post(http, "/v1/completions", {**body, "prompt": text})
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= whole["usage"]["total_tokens"] - 2
            cold = await post(http, "/v1/completions", {**body, "prompt": text, "cache_salt": "other"})
            assert cold["choices"][0]["text"] == again["choices"][0]["text"]


def test_own_texts_are_bounded_and_keyed() -> None:
    from ramet.runtime.serve.splice import OwnTexts

    texts = OwnTexts(max_texts=2)
    head = "x" * 60
    for index in range(3):
        texts.remember("t", f"{head}{index}", [index])
    assert texts.longest("t", f"{head}0 more") == ("", ())
    assert texts.longest("t", f"{head}2 more") == (f"{head}2", (2,))
    assert texts.longest("other", f"{head}2 more") == ("", ())


# Fields that vLLM's and SGLang's clients send besides


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
async def test_bad_words_do_not_come_and_longer_ones_are_refused(path: str) -> None:
    def asked(words: list[str]) -> dict[str, Any]:
        options = {"bad_words": words, "max_tokens": 6, "max_new_tokens": 6, "temperature": 0}
        match path:
            case "/generate":
                return {"text": "Hi", "sampling_params": options}
            case "/v1/completions":
                return {"prompt": "Hi", **options}
            case _:
                return {**ASK, **options}

    def text(answer: Any) -> str:
        choice = answer if path == "/generate" else answer["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])

    async with served("abcabc") as http:
        plain, without = [text(await post(http, path, asked(words))) for words in ([], ["b"])]
        refused = await post(http, path, asked(["word"]), 400)
    assert plain == "abcabc" and without and "b" not in without
    assert "more than one token" in refused["error"]["message"]


async def test_prompt_logprobs_and_ids_in_vllms_form() -> None:
    async with served("Fine.") as http:
        fields = {"prompt_logprobs": 1, "return_prompt_token_ids": True, "max_tokens": 2}
        chat = await post(http, "/v1/chat/completions", {**ASK, **fields})
        text = (await post(http, "/v1/completions", {"prompt": "Hi", **fields}))["choices"][0]
        streamed = await post(http, "/v1/chat/completions", {**ASK, **fields, "stream": True})
    for told in (chat, text, streamed[-2]):
        first, *rest = told["prompt_logprobs"]
        assert first is None and len(rest) == len(told["prompt_token_ids"]) - 1
        for token, entry in zip(told["prompt_token_ids"][1:], rest, strict=True):
            assert entry[str(token)]["logprob"] <= 0 and isinstance(entry[str(token)]["decoded_token"], str)
    assert chat["prompt_logprobs"][1:] and "token_ids" not in chat["choices"][0]


async def test_reasoning_stays_in_the_text_where_a_client_wants_it_so() -> None:
    config = ServeConfig(reasoning_format="think")
    said = "<think>\nHm.\n</think>\n\nYes."
    async with served(said, config=config) as http:
        answer = await post(http, "/v1/chat/completions", {**ASK, "separate_reasoning": False})
    message = answer["choices"][0]["message"]
    assert message["content"] == said and "reasoning_content" not in message


async def test_a_prompt_is_cut_from_the_left_and_begun_where_asked() -> None:
    async with served("Fine.") as http:

        async def prompt(**more: Any) -> list[int]:
            body = {**ASK, "return_prompt_token_ids": True, "max_tokens": 1, **more}
            return list((await post(http, "/v1/chat/completions", body))["prompt_token_ids"])

        whole, cut = await prompt(), await prompt(truncate_prompt_tokens=5)
        begun = await prompt(add_special_tokens=True)
    assert cut == whole[-5:]
    assert begun[0] == byte_tokenizer().bos_id and begun[-len(whole) :] == whole
