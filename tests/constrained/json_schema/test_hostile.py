"""Hostile schemas are answered in bounded time: a clear refusal, or a grammar that works."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from schema_grammars import accepts, grammar_of


def nested(depth: int, keyword: str) -> Any:
    schema: Any = {"type": "string"}
    for level in range(depth):
        if keyword == "properties":
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        elif keyword == "not":
            schema = {"not": schema}
        else:
            schema = {keyword: [schema, {"type": "integer", "minimum": level}]}
    return schema


def tree(width: int, depth: int) -> Any:
    if depth == 0:
        return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4)}}
    return {"oneOf": [{"allOf": [tree(width, depth - 1)], "properties": {f"q{depth}{i}": {"type": "integer"}}}
                      for i in range(width)]}  # fmt: skip


SERVED: dict[str, tuple[Any, str]] = {
    "10k texts": ({"enum": [f"value {i * 7919 % 10007}" for i in range(10_000)]}, '"value 12"'),
    "10k constants": ({"anyOf": [{"const": f"value {i}"} for i in range(10_000)]}, '"value 9999"'),
    "2k titled constants": ({"oneOf": [{"const": f"value {i}", "title": "t"} for i in range(2_000)]}, '"value 7"'),
    "long text": ({"type": "string", "maxLength": 100_000, "minLength": 3}, '"abc"'),
    "long pattern": ({"type": "string", "pattern": "^(a|b)*abb$", "maxLength": 100_000}, '"abb"'),
    "many items": ({"type": "array", "maxItems": 100_000, "items": {"type": "integer"}}, "[1, 2]"),
    "64 deep": (nested(64, "properties"), '{"a":' * 64 + '""' + "}" * 64),
    "deep unions": (nested(40, "anyOf"), '"x"'),
    "deep negation": (nested(100, "not"), '"x"'),
    "backtracker's bane": ({"type": "string", "pattern": "^(a+)+$"}, '"' + "a" * 5_000 + '"'),
    "3k required": (
        {"type": "object", "required": [f"r{i}" for i in range(1_000)]},
        json.dumps({f"r{i}": 0 for i in range(1_000)}),
    ),
    "huge bounds": ({"type": "integer", "minimum": -1e300, "maximum": 1e300}, "0"),
}

REFUSED: dict[str, tuple[Any, str]] = {
    "misspelt type": ({"type": "objec"}, "#/type"),
    "dead reference": (
        {"properties": {"a": {"$ref": "#/nope"}}, "required": ["a"], "type": "object"},
        "#/properties/a/$ref",
    ),
    "remote reference": ({"$ref": "http://example.com/x"}, "#/$ref"),
    "circle": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "#/$ref"),
    "circle through allOf": ({"allOf": [{"$ref": "#"}]}, "#"),
    "endless": ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "#"),
    "contradiction": ({"type": "string", "minLength": 3, "maxLength": 2}, "#"),
    "exponential automaton": ({"type": "string", "pattern": "(a|b)*a(a|b){20}$"}, "#/pattern"),
    "unclosed class": ({"type": "string", "pattern": "["}, "#/pattern"),
    "double star": ({"type": "string", "pattern": "foo**"}, "#/pattern"),
    "too deep": (nested(400, "not"), "#" + "/not" * 301),
    "tree of oneOf": (tree(4, 4), "#"),
    "overlapping patterns": (
        {
            "type": "object",
            "patternProperties": {f"[a-z]{{{i}}}x{i}": {"type": "integer", "minimum": i} for i in range(30)},
        },
        "#",
    ),
}


@pytest.mark.parametrize(("schema", "text"), SERVED.values(), ids=list(SERVED))
def test_serves_in_time(schema: Any, text: str) -> None:
    started = time.perf_counter()
    grammar = grammar_of(schema)
    assert time.perf_counter() - started < 6
    assert accepts(grammar, text)


@pytest.mark.parametrize(("schema", "at"), REFUSED.values(), ids=list(REFUSED))
def test_refuses_in_time_and_names_the_place(schema: Any, at: str) -> None:
    started = time.perf_counter()
    with pytest.raises(GrammarRefused) as caught:
        grammar_of(schema)
    assert time.perf_counter() - started < 6
    assert caught.value.at == at
