"""What each schema lets through: a caret stands before the character to be refused, or ends a text not yet complete."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from schema_grammars import accepts, grammar_of, with_caret

OBJECT: dict[str, Any] = {"type": "object"}
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}
A_AND_B = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}

TABLE: dict[str, tuple[Any, list[str]]] = {
    "true": (True, ["1", "[null, {}]", '{"a": [true]}', "nul^"]),
    "null": ({"type": "null"}, ["null", "nu^m"]),
    "integer": ({"type": "integer"}, ["0", "-7", "120", "0^1", "^+1", "-^", "1^.0", "1^e2"]),
    "number": ({"type": "number"}, ["1e3", "-2.5E-7", "0.10", "1e^", "1.^", "0^0"]),
    "union of types": ({"type": ["string", "null"]}, ['"a"', "null", "^1"]),
    "enum": ({"enum": ["red", "real"]}, ['"red"', '"real"', '"re^x', '"rea^']),
    "mixed enum": (
        {"enum": ["a", 1, None, True, {"k": [1]}]},
        ['"a"', "1", "null", "true", '{"k": [1]}', "^2", '{"^b"'],
    ),
    "enum and type": ({"enum": ["a", 1], "type": "string"}, ['"a"', "^1"]),
    "const 1.0 is also 1": ({"const": 1.0}, ["1", "1.0", "1.^1"]),
    "bool is no number": ({"const": 1}, ["1", "^true"]),
    "escaped constant": ({"const": 'a"\n\\'}, ['"a\\"\\n\\\\"', '"a^"']),
    "minimum": ({"type": "number", "minimum": 0.5}, ["0.5", "0.75", "12", "0.^4", "0.^0", "0^,5", "^-1"]),
    "both bounds": (
        {"type": "number", "minimum": -4, "maximum": 4},
        ["-0.5", "-0.1", "0", "4", "-4", "4.0", "4.^1", "-4.0^1"],
    ),
    "exclusive bound": ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "1e3", "0.0^", "^-1"]),
    "integer bounds": ({"type": "integer", "minimum": -5, "maximum": 12}, ["-5", "0", "12", "-^6", "1^3", "2^0"]),
    "beyond int64": ({"type": "integer", "minimum": 10**30}, ["1" + "0" * 30, "1" + "0" * 29 + "^"]),
    "multiple of 7": ({"type": "integer", "multipleOf": 7}, ["14", "0", "-7", "10^", "100^"]),
    "multiple of 0.5": ({"multipleOf": 0.5, "type": "number"}, ["1.5", "2", "2.0", "1.^3", "1.50"]),
    "draft 4 exclusive": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "integer",
            "minimum": 3,
            "exclusiveMinimum": True,
        },
        ["4", "3^"],
    ),
    "length": (
        {"type": "string", "minLength": 2, "maxLength": 3},
        ['"ab"', '"abc"', '"\\n\\n"', '"éé"', '"a^"', '"abc^d'],
    ),
    "length counts code points": (
        {"type": "string", "maxLength": 1},
        ['"\\u0041"', '"\\ud83d\\ude00"', '"\\n"', '"a^b'],
    ),
    "raw control": ({"type": "string"}, ['"a\\tb"', '"^\t']),
    "pattern anywhere": ({"type": "string", "pattern": "b"}, ['"abc"', '"b"', '"ac^"']),
    "pattern with quote": ({"type": "string", "pattern": '^"x"$'}, ['"\\"x\\""', '"^x']),
    "pattern and length": ({"type": "string", "pattern": "^a+$", "maxLength": 2}, ['"a"', '"aa"', '"aa^a', '"^"']),
    "not a pattern": ({"type": "string", "not": {"pattern": "^a"}}, ['""', '"b"', '"^a']),
    "not a constant": ({"type": "string", "not": {"const": "no"}}, ['"yes"', '"n"', '"no^"', '"non"']),
    "not a type": ({"not": {"type": "string"}}, ["1", "[]", '^"a"']),
    "not not": ({"not": {"not": {"type": "string"}}}, ['"a"', "^1"]),
    "all of": ({"allOf": [{"type": "integer"}, {"minimum": 7}, {}]}, ["7", "^0", "6^"]),
    "one of, overlapping": (
        {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]},
        ["7", "-3", "3^", "^0"],
    ),
    "optional properties": (
        {**CLOSED, **A_AND_B},
        ["{}", '{"a": 1}', '{"b": 2}', '{"a": 1, "b": 2}', '{"^c"', '{"b": 2^,'],
    ),
    "open object": (
        {**OBJECT, "properties": {"a": {"type": "integer"}}},
        ['{"a": 1, "z": []}', '{"z": 1}', '{"a": ^"x"'],
    ),
    "typed rest": (
        {**OBJECT, "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
        ['{"a": "x", "z": 2}', '{"z": ^"x"', '{"a": ^1'],
    ),
    "required, not declared": ({**OBJECT, "required": ["b", "a"]}, ['{"b": 1, "a": 2}', '{"b": 1^}']),
    "patterns meet properties": (
        {**OBJECT, "properties": {"x_1": {"minimum": 5}}, "patternProperties": {"^x_": {"type": "integer"}}},
        ['{"x_1": 7}', '{"x_1": 3^}', '{"x_1": 7^.5', '{"x_2": 3}', '{"y": "s"}'],
    ),
    "property names": (
        {**OBJECT, "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "integer"}},
        ['{"ab": 1}', '{"^A"', '{"a": ^"s"'],
    ),
    "bounded names": ({"propertyNames": {"maxLength": 3}, "type": "object"}, ['{"f": 1, "foo": 2}', '{"f": 1, "foo^b']),
    "literal names": (
        {**CLOSED, "properties": {"size (cm)": {}, "a.b*": {}, 'q"\\': {}}},
        ['{"size (cm)": 1}', '{"size^X', '{"q\\"\\\\": 1}'],
    ),
    "number of properties": (
        {**CLOSED, "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2},
        ['{"a": 1, "c": 2}', '{"a": 1^}', '{"^c"', '{"a": 1, "b": 2^,'],
    ),
    "dependent required": (
        {**CLOSED, **A_AND_B, "dependentRequired": {"a": ["b"]}},
        ['{"b": 1}', '{"a": 1, "b": 2}', '{"a": 1^}'],
    ),
    "at least one of two": (
        {**CLOSED, **A_AND_B, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a": 1}', '{"b": 1}', "{^}"],
    ),
    "not both": (
        {**CLOSED, **A_AND_B, "not": {"required": ["a", "b"]}},
        ["{}", '{"a": 1}', '{"b": 1}', '{"a": 1^,'],
    ),
    "condition on a constant": (
        {
            **CLOSED,
            "properties": {"k": {"enum": ["x", "y"]}, "v": {"type": "string"}},
            "required": ["k"],
            "if": {"properties": {"k": {"const": "x"}}},
            "then": {"required": ["v"]},
        },
        ['{"k": "y"}', '{"k": "x", "v": "s"}', '{"k": "x"^}'],
    ),
    "discriminated union": (
        {
            **OBJECT,
            "properties": {"action": {"type": "string"}},
            "oneOf": [
                {
                    "properties": {"action": {"const": "go"}, "place": {"type": "string"}},
                    "required": ["action", "place"],
                },
                {"properties": {"action": {"const": "stop"}}, "required": ["action"]},
            ],
        },
        ['{"action": "stop"}', '{"action": "go", "place": "x"}', '{"action": "go"^}', '{"action": "^w'],
    ),
    "a key must exist": (
        {**OBJECT, "not": {"additionalProperties": {"type": "integer"}}},
        ['{"a": "s"}', '{"a": 1, "b": null}', "{^}", '{"a": 1^}'],
    ),
    "dead optional property": ({**CLOSED, "properties": {"a": False, "b": {}}}, ["{}", '{"b": 1}', '{"^a"']),
    "items": (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        ["[1]", "[1, 2]", "[^]", "[1, 2^,"],
    ),
    "tuple": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        ['[1, "a"]', "[1]", "[]", '[1, "a"^,'],
    ),
    "tuple, draft 7": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [{"type": "integer"}],
            "additionalItems": {"type": "null"},
        },
        ["[1, null, null]", "[1, ^2"],
    ),
    "unique": ({"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True}, ["[1, 2]", "[3, 1, 2]", "[1, ^1"]),
    "contains": (
        {"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}},
        ["[1, 3]", "[3]", "[1, 2^]"],
    ),
    "contains at most": (
        {"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}, "maxContains": 1},
        ["[3, 1]", "[3, 30]", "[3, 3^]"],
    ),
    "contains behind a prefix": (
        {"type": "array", "prefixItems": [{"type": "integer"}], "contains": {"type": "string"}},
        ['[1, "a"]', '[1, 2, "a"]', "[1^]", '[^"a"'],
    ),
    "unevaluated after a merge": (
        {"allOf": [{**OBJECT, "properties": {"a": {"type": "integer"}}}], "unevaluatedProperties": False},
        ['{"a": 1}', '{"^b"'],
    ),
    "unevaluated by branch": (
        {
            **OBJECT,
            "anyOf": [
                {"properties": {"a": {"const": 1}}, "required": ["a"]},
                {"properties": {"b": {}}, "required": ["b"]},
            ],
            "unevaluatedProperties": False,
        },
        ['{"a": 1}', '{"b": 0}', '{"^c": 0'],
    ),
    "reference with siblings": (
        {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "minLength": 2},
        ['"ab"', '"a^"'],
    ),
    "draft 7 reads nothing beside $ref": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"s": {"type": "string"}},
            "$ref": "#/definitions/s",
            "minLength": 2,
        },
        ['"a"', "^1"],
    ),
    "escaped pointer": ({"$defs": {"a/b%c~": {"type": "integer"}}, "$ref": "#/$defs/a~1b%25c~0"}, ["1", '^"x"']),
    "pointer into a list": (
        {
            **OBJECT,
            "properties": {
                "a": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "b": {"$ref": "#/properties/a/anyOf/0"},
            },
        },
        ['{"b": 1}', '{"b": ^"x"'],
    ),
    "anchor": ({"$defs": {"x": {"$anchor": "q", "type": "integer"}}, "$ref": "#q"}, ["1", '^"x"']),
    "recursion": (
        {**CLOSED, "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["v"]},
        ['{"v": 1}', '{"v": 1, "next": {"v": 2, "next": {"v": 3}}}', '{"v": 1, "next": {^}'],
    ),
    "recursion with siblings": (
        {
            "$ref": "#/$defs/n",
            "required": ["v"],
            "$defs": {"n": {**CLOSED, "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}}}},
        },
        ['{"v": 1, "next": {}}', "{^}"],
    ),
}


@pytest.mark.parametrize(("schema", "texts"), TABLE.values(), ids=list(TABLE))
def test_language(schema: Any, texts: list[str]) -> None:
    grammar = grammar_of(schema)
    assert [with_caret(grammar, text.replace("^", "")) for text in texts] == texts


def test_nested_depth_is_not_cut() -> None:
    grammar = grammar_of({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}})
    deep = '{"children": [' * 60 + "{}" + "]}" * 60
    assert with_caret(grammar, deep) == deep


def test_any_order_takes_keys_as_they_come() -> None:
    schema = {**CLOSED, **A_AND_B, "required": ["a", "b"]}
    text = '{"b": 2, "a": 1}'
    assert with_caret(grammar_of(schema), text) == '{"^b": 2, "a": 1}'
    assert with_caret(grammar_of(schema, any_order=True), text) == text
    assert with_caret(grammar_of(schema, any_order=True), '{"b": 2}') == '{"b": 2^}'
    assert with_caret(grammar_of(schema, any_order=True), '{"b": 2, "b": 2}') == '{"b": 2, "^b": 2}'


@pytest.mark.parametrize(
    ("whitespace", "texts"),
    [
        ("compact", ['{"a":1}', '{"a":^ 1}', "{^\n"]),
        ("bounded", ['{"a":1}', '{"a": 1}', '{\n    "a":\n1\n}', '{ ^ "a"', "{\n" + " " * 20 + '"a":1}', '{"a": 1}^ ']),
        ("exact", ['{"a":1}', '{ \r\n\t "a"  : 1  }', '^ {"a":1}']),
    ],
)
def test_whitespace_policies(whitespace: str, texts: list[str]) -> None:
    grammar = grammar_of({**CLOSED, "properties": {"a": {"const": 1}}}, whitespace=whitespace)
    assert [with_caret(grammar, text.replace("^", "")) for text in texts] == texts


def test_one_string_each_of_the_escapes() -> None:
    grammar = grammar_of({"type": "string", "maxLength": 8000})
    for escape in ['\\"', "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t", "\\u00e9", "\\ud83d\\ude00"]:
        assert with_caret(grammar, f'"{escape}"') == f'"{escape}"'
    assert with_caret(grammar, '"\\x"') == '"\\^x"'


@pytest.mark.parametrize("any_order", [False, True])
def test_a_free_key_written_twice_is_one_property(any_order: bool) -> None:
    """Readers keep the last of two equal keys, so the value has one property less than the text has members."""
    two = grammar_of({"type": "object", "minProperties": 2}, any_order=any_order)
    assert accepts(two, '{"foo": 1, "bar": 2}') and accepts(two, '{"a": 1, "a": 1, "b": 2}')
    assert not accepts(two, '{"a": 1, "a": 2}') and not accepts(two, '{"a": 1, "\\u0061": 2}')
    named = {"properties": {"x": {}}, "required": ["x"], "minProperties": 3, "type": "object"}
    three = grammar_of(named, any_order=any_order)
    assert accepts(three, '{"x": 1, "a": 2, "b": 3}') and not accepts(three, '{"x": 1, "a": 2, "a": 3}')
    assert not accepts(three, '{"a": 2, "b": 3, "c": 4}')
    both = grammar_of({"type": "object", "minProperties": 2, "maxProperties": 2}, any_order=any_order)
    assert accepts(both, '{"a": 1, "b": 1}') and with_caret(both, '{"a": 1, "a": 1}') == '{"a": 1, "a^": 1}'


def test_few_possible_keys_never_lead_into_a_dead_end() -> None:
    keys = {"type": "object", "propertyNames": {"pattern": "^(a|b|cc)$"}, "minProperties": 3, "maxProperties": 3}
    grammar = grammar_of(keys, any_order=True)
    assert accepts(grammar, '{"cc": 1, "a": 1, "b": 1}')
    assert with_caret(grammar, '{"a": 1, "a": 1}') == '{"a": 1, "^a": 1}'


def test_a_key_that_must_have_some_value_is_not_written_over() -> None:
    """Some property is no string: once it came, its key may not come again with one."""
    some = {"type": "object", "not": {"additionalProperties": {"type": "string"}}}
    grammar = grammar_of(some, any_order=True)
    assert accepts(grammar, '{"a": "x", "b": 1}') and accepts(grammar, '{"a": "x", "a": 1}')
    assert not accepts(grammar, '{"a": 1, "a": "x"}')


def test_more_different_keys_than_can_be_told_apart_are_refused() -> None:
    some = {"not": {"unevaluatedProperties": {"minimum": 2.25}}}
    for schema in ({"type": "object", "minProperties": 65}, {"minProperties": 1e300, **some}):
        with pytest.raises(GrammarRefused) as refusal:
            grammar_of(schema)
        assert (refusal.value.code, refusal.value.at) == ("too_complex", "#/minProperties")
    many = {f"key {i}": i for i in range(200)}
    assert accepts(grammar_of({"type": "object", "minProperties": 64}), json.dumps(many))
