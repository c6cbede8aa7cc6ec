"""Bodies, fields and messages: whatever a client sends becomes a request, or a BadRequest that names the field."""

import json
import math

import pytest

from ramet.constrained.spec import Choice, JsonObject, JsonSchema, Lark, Regex
from ramet.runtime.errors import BadRequest, NotBuilt, NotFound
from ramet.runtime.serve.adapters import fields
from ramet.runtime.serve.adapters.openai_chat import tool_choice
from ramet.runtime.serve.body import decode, depth
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.messages import strip_nonce, to_template_messages, to_tools
from ramet.runtime.serve.protocols.openai_chat import ChatBody, ChatMessage, FunctionCall, ToolCall
from ramet.runtime.serve.response_store import ResponseStore, StoredResponse
from ramet.runtime.serve.splice import OwnTurn, OwnTurns
from ramet.runtime.serve.tools import hermes, plain_json
from ramet.runtime.serve.tools.base import Call, closed

CONFIG = ServeConfig()


def body(**given: object) -> ChatBody:
    return decode(json.dumps({"messages": [], **given}).encode(), ChatBody, max_depth=64)


@pytest.mark.parametrize(
    ("raw", "at"),
    [
        (b"", "$"),
        (b"[]", "$"),
        (b"{", "$"),
        (b'{"messages": "x"}', "$.messages"),
        (b'{"messages": [{"content": "x"}]}', "$.messages[0]"),
        (b'{"messages": [], "temperature": "hot"}', "$.temperature"),
        (b'{"messages": [], "temperature": NaN}', "$"),
        (b'{"messages": [], "temperature": 1e999}', "$"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "$"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "$"),
        (b"[" * 100_000, "$"),
    ],
)
def test_bad_bodies_are_refused_with_their_place(raw: bytes, at: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(raw, ChatBody, max_depth=64)
    assert caught.value.at is not None and caught.value.at.startswith(at)


def test_depth_counts_brackets_outside_strings() -> None:
    assert depth(rb'{"a": "[[[\"[[", "b": [[]]}') == 3


def test_null_is_absent_and_unknown_fields_are_ignored() -> None:
    names = [name for name in ChatBody.__struct_fields__ if name != "messages"]
    parsed = body(**dict.fromkeys(names), store=True, client_metadata={"x": 1}, verbosity="low")
    assert all(getattr(parsed, name) is None for name in names)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 999999),
        ("top_p", 0),
        ("top_p", -1),
        ("top_p", 1.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("frequency_penalty", 3),
        ("presence_penalty", -3),
        ("top_k", -2),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(BadRequest) as caught:
        fields.to_sampling(body(**{name: value}), vocabulary_size=100)
    assert caught.value.at == f"$.{name}"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_json_cannot_say_is_refused_too(value: float) -> None:
    parsed = body()
    parsed.temperature = value
    with pytest.raises(BadRequest):
        fields.to_sampling(parsed, vocabulary_size=100)


@pytest.mark.parametrize("top_k", [0, -1, 100, 5000])
def test_top_k_of_everything_is_no_top_k(top_k: int) -> None:
    assert fields.to_sampling(body(top_k=top_k), vocabulary_size=100).top_k == 0


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"response_format": {"type": "text"}}, type(None)),
        ({"response_format": {"type": "json_object"}}, JsonObject),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, JsonSchema),
        ({"response_format": {"type": "json_schema", "name": "x", "schema": {"type": "null"}}}, JsonSchema),
        ({"structured_outputs": {"json": {"type": "object"}}}, JsonSchema),
        ({"structured_outputs": {"regex": "a+"}}, Regex),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Choice),
        ({"guided_json": '{"type": "null"}'}, JsonSchema),
        ({"guided_choice": ["a"]}, Choice),
        ({"regex": "a+"}, Regex),
        ({"ebnf": "root ::= 'a'"}, Lark),
    ],
)
def test_every_dialect_of_constraints_is_understood(given: dict[str, object], kind: type) -> None:
    assert isinstance(fields.to_grammar(body(**given), CONFIG), kind)


def test_two_constraints_and_a_schema_without_schema_are_refused() -> None:
    with pytest.raises(BadRequest):
        fields.to_grammar(body(regex="a", guided_choice=["a"]), CONFIG)
    with pytest.raises(BadRequest) as caught:
        fields.to_grammar(body(response_format={"type": "json_schema", "json_schema": {"name": "x"}}), CONFIG)
    assert caught.value.at == "$.response_format.json_schema.schema"


def test_schema_keeps_the_order_of_its_keys() -> None:
    spec = fields.to_grammar(body(guided_json={"properties": {"z": {}, "a": {}}}), CONFIG)
    assert isinstance(spec, JsonSchema) and spec.schema.index('"z"') < spec.schema.index('"a"')


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]])
def test_empty_contents_are_the_same(content: object) -> None:
    calls = [ToolCall(id="c", type="function", function=FunctionCall(name="f", arguments='{ "a":1}'))]
    messages = [ChatMessage(role="assistant", content=content, tool_calls=calls)]  # type: ignore[arg-type]
    (rendered,) = to_template_messages(messages, [], hermes)  # type: ignore[arg-type]
    assert rendered["content"] == ""
    assert rendered["tool_calls"][0]["function"]["arguments"] == '{ "a":1}'


def test_parts_are_joined_and_images_are_refused() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    (rendered,) = to_template_messages([ChatMessage(role="system", content=parts)], [], hermes)  # type: ignore[arg-type]
    assert rendered["content"] == "ab"
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(NotBuilt):
        to_template_messages([ChatMessage(role="user", content=image)], [], hermes)  # type: ignore[arg-type]


def test_tools_are_described_where_the_template_knows_none() -> None:
    tools = to_tools(
        [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}, {"type": "web_search"}]
    )
    assert [tool.name for tool in tools] == ["f"]
    messages = to_template_messages([ChatMessage(role="user", content="x")], tools, plain_json)  # type: ignore[arg-type]
    assert messages[0]["role"] == "system" and '"name": "f"' in messages[0]["content"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "function": {"name": "f"}}, "=f"),
        ({"type": "function", "name": "f"}, "=f"),
    ],
)
def test_tool_choice(given: str | dict[str, object] | None, expected: str) -> None:
    tools = to_tools([{"type": "function", "function": {"name": "f"}}])
    assert tool_choice(given, tools) == expected


def test_tool_choice_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(BadRequest):
        tool_choice({"type": "function", "function": {"name": "g"}}, to_tools([{"function": {"name": "f"}}]))


def test_billing_nonce_is_stripped_and_nothing_else() -> None:
    assert strip_nonce("x-anthropic-billing-header: v=1; cch=ab12;\nYou are") == "You are"
    assert strip_nonce("You are x-anthropic-billing-header: no") == "You are x-anthropic-billing-header: no"


def own_turn(arguments: str = '{"b":"é","a":1.50}', content: str = "") -> OwnTurn:
    calls = (Call("call_1", "f", arguments),) if arguments else ()
    return OwnTurn(tokens=(1, 2), content=content, reasoning="", calls=calls, program_id="p")


@pytest.mark.parametrize(
    ("arguments", "hit"),
    [
        ('{"b":"é","a":1.50}', True),
        ('{"a": 1.5, "b": "\\u00e9"}', True),
        ('{"a": 1.5, "b": "e"}', False),
        ('{"a": true, "b": "é"}', False),
        ("not json", False),
    ],
)
def test_an_echoed_call_is_known_by_its_id_and_equal_arguments(arguments: str, hit: bool) -> None:
    turns = OwnTurns()
    turns.remember("t", own_turn())
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": arguments}}],
    }
    assert (turns.find("t", message) is not None) == hit
    assert turns.find("other tenant", message) is None


def test_an_echoed_text_is_known_by_itself_and_old_turns_go() -> None:
    turns = OwnTurns(max_turns=2)
    for text in ("one", "two", "three"):
        turns.remember("t", own_turn("", text))
    found = [turns.find("t", {"role": "assistant", "content": text}) for text in ("one", "two", "three")]
    assert [turn is not None for turn in found] == [False, True, True]


def test_minted_ids_differ_and_fit_clients() -> None:
    turns = OwnTurns()
    ids = {turns.mint("r", choice, call) for choice in range(3) for call in range(3)}
    assert len(ids) == 9 and all(name.startswith("call_") and len(name) == 27 for name in ids)


def test_response_store_is_bounded_and_keyed() -> None:
    store = ResponseStore(max_responses=2, max_bytes=10_000)
    for name in "abc":
        store.put("key", StoredResponse(response={"id": name}, items=[]))
    assert len(store) == 2
    assert store.get("key", "c").response == {"id": "c"}
    for key, name in (("key", "a"), ("other", "c")):
        with pytest.raises(NotFound):
            store.get(key, name)
    store.put("key", StoredResponse(response={"id": "big"}, items=["x" * 20_000]))
    assert len(store) == 0


def test_tool_schemas_are_closed_where_they_say_nothing() -> None:
    schema = {
        "properties": {"a": {"properties": {"b": {}}}, "c": {"properties": {}, "additionalProperties": True}},
        "$defs": {"d": {"allOf": [{"properties": {"x": {}}}], "properties": {"y": {}}}},
    }
    shut = closed(schema)
    assert shut["additionalProperties"] is False
    assert shut["properties"]["a"]["additionalProperties"] is False
    assert shut["properties"]["c"]["additionalProperties"] is True
    assert "additionalProperties" not in shut["$defs"]["d"]
    assert "additionalProperties" not in schema
