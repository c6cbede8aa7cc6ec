"""Defects that users of other engines reported, each reduced to a schema: enforced here, or refused at its pointer."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from schema_grammars import accepts, grammar_of


def closed(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, **keywords}


ENFORCED: dict[str, tuple[Any, list[str], list[str]]] = {
    "O01 pattern and length": ({"type": "string", "pattern": "^a+$", "maxLength": 2}, ['"a"', '"aa"'], ['"aaa"', '""']),
    "O01 format and length": (
        {"type": "string", "format": "email", "maxLength": 6},
        ['"a@b.co"'],
        ['"aa@b.co"', '"a"'],
    ),
    "O02 escapes under a length": ({"type": "string", "maxLength": 8000}, ['"\\n\\"\\\\\\u0041"'], ['"\t"']),
    "O03 enum beyond ASCII": ({"enum": ["在线", "北京"]}, ['"在线"', '"北京"'], ['"在"']),
    "O04 class beyond ASCII": ({"type": "string", "pattern": "^[é]$|^[a-zà-ÿ]+$"}, ['"é"', '"añb"'], ['"É"']),
    "O06 names are literal": (
        {"type": "object", "properties": {"a.b*": {}}, "additionalProperties": False},
        ['{"a.b*": 1}'],
        ['{"axb*": 1}'],
    ),
    "O08 escaped slash": ({"type": "string", "pattern": "^a\\/b$"}, ['"a/b"'], ['"a\\\\/b"']),
    "O09 a bound's dot": ({"type": "number", "minimum": 0.5}, ["0.5", "1"], ["0,5", "0;5", "0.4"]),
    "O10 bounds of both signs": (
        {"type": "number", "minimum": -4, "maximum": 4},
        ["-0.5", "-0.1", "0", "4", "-4"],
        ["4.1", "-4.01", "100"],
    ),
    "O11 exclusive minimum": ({"type": "number", "exclusiveMinimum": 0}, ["0.1"], ["0", "-1"]),
    "O11 negative minimum": ({"type": "integer", "minimum": -5}, ["-3"], ["-6"]),
    "O11 closed interval": ({"type": "number", "minimum": 1, "maximum": 5}, ["5.0"], ["5.7", "0.9"]),
    "O12 multiples": (closed(properties={"n": {"type": "integer", "multipleOf": 7}}), ['{"n": 98}'], ['{"n": 100}']),
    "O13 declared names are no free keys": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True},
        ['{"b": "x"}', '{"a": 1, "b": "x"}'],
        ['{"a": "wrong"}'],
    ),
    "O14 anyOf beside properties": (
        closed(
            properties={"key": {"type": "string"}, "modifier": {"type": "string"}},
            anyOf=[{"required": ["modifier"]}, {"required": ["key"]}],
        ),
        ['{"key": "a"}', '{"key": "a", "modifier": "b"}'],
        ["{}", '{"key": "a", "x": 1}', "[]"],
    ),
    "O15 propertyNames beside a schema for the rest": (
        {
            "type": "object",
            "propertyNames": {"type": "string"},
            "additionalProperties": {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]},
        },
        ['{"a": {"n": 1}}'],
        ['{"a": "plain"}', '{"a": {}}'],
    ),
    "O16 patterns beside properties": (
        {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "patternProperties": {"^x_": {"type": "integer"}},
        },
        ['{"name": "a", "x_1": 2}'],
        ['{"x_1": "s"}', '{"name": 1}'],
    ),
    "O17 allOf is an intersection": ({"allOf": [{"type": "integer"}, {"type": "integer"}, {}]}, ["7"], ["00", '"7"']),
    "O18 a union is no sequence": (
        {"type": "object", "properties": {"foo": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}},
        ['{"foo": null}', '{"foo": true}'],
        ['{"foo": nulltrue}'],
    ),
    "O19 oneOf beside properties": (
        {
            "type": "object",
            "properties": {"action": {"type": "string"}},
            "oneOf": [
                {
                    "properties": {"action": {"const": "go_to"}, "location": {"type": "string"}},
                    "required": ["action", "location"],
                },
                {"properties": {"action": {"const": "stop"}}, "required": ["action"]},
            ],
        },
        ['{"action": "go_to", "location": "x"}', '{"action": "stop"}'],
        ['{"action": "go_to"}', '{"action": "x"}', "{}"],
    ),
    "O20 overlapping key rules": (
        closed(
            properties={"score": {"type": "integer", "multipleOf": 5}},
            required=["score"],
            patternProperties={"^score$": {"type": "integer"}},
        ),
        ['{"score": 10}'],
        ['{"score": 7}', "{}"],
    ),
    "O21 mutual recursion": (
        {
            "$ref": "#/definitions/r",
            "definitions": {
                "rs": {"type": "array", "items": {"$ref": "#/definitions/r"}},
                "r": closed(
                    properties={"PathPart": {"type": "string"}, "ChildResources": {"$ref": "#/definitions/rs"}}
                ),
            },
        },
        ['{"PathPart": "a", "ChildResources": [{"ChildResources": []}]}'],
        ['{"ChildResources": [1]}'],
    ),
    "O22 real recursion": (
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
        },
        ['{"children": [' * 20 + '{"name": "x"}' + "]}" * 20],
        ['{"children": [' * 20 + '{"name": 1}' + "]}" * 20],
    ),
    "O23 pointer through a list": (
        {
            "type": "object",
            "properties": {
                "tree": {"properties": {"left": {"anyOf": [{"type": "null"}, {"type": "object"}]}}},
                "x": {"$ref": "#/properties/tree/properties/left/anyOf/1"},
            },
        },
        ['{"x": {}}'],
        ['{"x": null}'],
    ),
    "O24 minItems": ({"type": "array", "minItems": 1, "items": {"type": "integer"}}, ["[1]"], ["[]"]),
    "O24 minItems with a tuple": (
        {"type": "array", "minItems": 2, "maxItems": 3, "prefixItems": [{"type": "integer"}]},
        ['[1, "x"]', "[1, 2, 3]"],
        ["[1]", "[1, 2, 3, 4]", '["x", 1]'],
    ),
    "O25 large mixed enum": (
        {"enum": [*(f"v{i}" for i in range(8_000)), None, True, 1, {"a": [1]}]},
        ['"v7999"', "null", "true", "1", '{"a": [1]}'],
        ['"v8000"', "false", "2"],
    ),
    "O26 a bound is a counter": (
        closed(properties={"content": {"type": "string", "maxLength": 100_000}}),
        ['{"content": "x"}'],
        ['{"content": 1}'],
    ),
    "O28 an empty branch": ({"type": "string", "pattern": "^(|.*)$"}, ['""', '"x"'], ["1"]),
}


@pytest.mark.parametrize(("schema", "good", "bad"), ENFORCED.values(), ids=list(ENFORCED))
def test_enforced(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = grammar_of(schema)
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


def test_o05_any_split_of_an_escape_is_accepted() -> None:
    state = grammar_of({"type": "string"}).initial()
    for byte in b'"\\u00e9\\n"':  # every byte is a token of its own here
        assert byte in state.allowed()
        state = state.advance(byte)
    assert state.accepting


def test_o07_an_unusual_escape_is_enforced_or_refused() -> None:
    try:
        grammar = grammar_of({"type": "string", "pattern": "^hello there indeed\\!$"})
    except GrammarRefused as refusal:
        assert refusal.at == "#/pattern"
        return
    assert accepts(grammar, '"hello there indeed!"')
    assert not accepts(grammar, '"anything"')


@pytest.mark.parametrize("pattern", ["foo**", "[", "(", "a{2,1}", "\\", "(?<n>a)\\k<n>"])
def test_o27_a_bad_pattern_is_this_requests_own_error(pattern: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        grammar_of({"type": "object", "properties": {"a": {"pattern": pattern, "type": "string"}}})
    assert caught.value.at == "#/properties/a/pattern"
    assert accepts(grammar_of({"type": "string", "pattern": "^(.*)$"}), '"x"')


def test_o29_deeply_nested_one_of_is_answered() -> None:
    schema: Any = {"type": "object", "properties": {"leaf": {"type": "string"}}}
    for level in range(12):
        schema = {"oneOf": [schema, {"type": "object", "properties": {f"x{level}": schema}, "required": [f"x{level}"]}]}
    try:
        grammar_of(schema)
    except GrammarRefused as refusal:
        assert refusal.code == "too_complex"


def test_o31_whitespace_is_bounded_and_none_follows_the_value() -> None:
    grammar = grammar_of({"type": "object"})
    assert accepts(grammar, "{}")
    assert not accepts(grammar, "{} ")
    assert not accepts(grammar, "{" + " " * 30 + "}")
    assert not accepts(grammar, '{"a":\n' + " " * 21 + "1}")


def test_o33_when_satisfied_nothing_but_the_end_may_come() -> None:
    state = grammar_of({"type": "object"}).initial().advance_bytes(b"{}")
    assert state.done
    assert state.allowed() == []


def test_a_schema_is_text_and_its_order_counts() -> None:
    names = list(json.loads('{"z": 1, "a": 2}'))
    grammar = grammar_of('{"type": "object", "properties": {"z": {}, "a": {}}, "required": ["a", "z"]}')
    assert names == ["z", "a"]
    assert accepts(grammar, '{"z": 1, "a": 2}')
    assert not accepts(grammar, '{"a": 1, "z": 2}')
