"""The account: every keyword is named, what is stricter says why, what cannot be enforced is refused or declared."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet.constrained.json_schema.lower import lower, lower_object, validate_final
from ramet.constrained.json_schema.validate import Failure
from ramet.constrained.ledger import Ledger, LedgerEntry
from ramet.constrained.spec import JsonObject, JsonSchema
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from schema_grammars import accepts, grammar_of

UNIQUE = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}


def ledger_of(schema: object, **options: object) -> dict[str, LedgerEntry]:
    """Entries by pointer."""
    spec = JsonSchema(schema=json.dumps(schema), **options)  # type: ignore[arg-type]
    return {entry.pointer: entry for entry in lower(spec).ledger}


def test_names_every_reachable_keyword_once() -> None:
    schema = {
        "title": "t",
        "$ref": "#/$defs/a",
        "$defs": {"a": {"type": "integer", "x-note": 1}, "unused": {"not": {}}},
    }
    entries = ledger_of(schema)
    assert list(entries) == ["", "/title", "/$ref", "/$defs", "/$defs/a/type", "/$defs/a/x-note"]
    assert entries["/$defs/a/type"].status == "stricter"
    assert entries["/$defs/a/x-note"].reason.startswith("not a keyword")


def test_the_defaults_are_said_at_the_root() -> None:
    assert "20 blanks" in ledger_of({})[""].reason
    assert "any order" in ledger_of({}, any_order=True)[""].reason
    assert ledger_of({})[""].status == "stricter"


def test_formats_are_told_apart() -> None:
    entries = ledger_of({"allOf": [{"format": "date"}, {"format": "hostname"}, {"format": "my-own"}]})
    assert [entries[f"/allOf/{i}/format"].status for i in range(3)] == ["exact", "stricter", "exact"]
    assert "annotation" in entries["/allOf/2/format"].reason


def test_draft_7_siblings_of_a_reference_are_said_to_be_ignored() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/s", "minLength": 3,
              "definitions": {"s": {"type": "string"}}}  # fmt: skip
    assert "ignored" in ledger_of(schema)["/minLength"].reason


def test_refuses_at_the_keyword_by_default() -> None:
    with pytest.raises(GrammarRefused) as caught:
        grammar_of(UNIQUE)
    assert caught.value.at == "#/properties/tags/uniqueItems"
    assert caught.value.status == 400


def test_declares_and_validates_at_the_end_when_asked() -> None:
    grammar = grammar_of(UNIQUE, unsupported="declare")
    deferred = [e for e in grammar.ledger if isinstance(e, LedgerEntry) and e.status == "deferred"]
    assert [(e.pointer, e.keyword) for e in deferred] == [("/properties/tags/uniqueItems", "uniqueItems")]
    assert accepts(grammar, '{"tags": ["a", "a"]}')
    assert not accepts(grammar, '{"tags": ["a", 1]}')
    text = json.dumps(UNIQUE)
    assert validate_final(text, {"tags": ["a", "a"]}) == [Failure("/properties/tags/uniqueItems", "/tags")]
    assert validate_final(text, {"tags": ["a", "b"]}) == []


@pytest.mark.parametrize(
    ("schema", "value", "failing"),
    [
        ({"properties": {"a/b": {"items": UNIQUE}}}, {"a/b": [{}, {"tags": ["x", "x"]}]},
         [("/properties/a~1b/items/properties/tags/uniqueItems", "/a~1b/1/tags")]),
        ({"prefixItems": [{}, UNIQUE], "items": UNIQUE}, [1, {"tags": [1]}, {"tags": ["x", "x"]}],
         [("/prefixItems/1/properties/tags/items/type", "/1/tags/0"),
          ("/items/properties/tags/uniqueItems", "/2/tags")]),
        ({"properties": {"x": UNIQUE, "y": UNIQUE}}, {"y": {"tags": ["a", "a"]}},
         [("/properties/y/properties/tags/uniqueItems", "/y/tags")]),
        ({"$defs": {"t": UNIQUE}, "allOf": [{"$ref": "#/$defs/t"}]}, {"tags": ["a", "a"]},
         [("/$defs/t/properties/tags/uniqueItems", "/tags")]),
        ({"if": {"required": ["k"]}, "then": {"maxProperties": 1}}, {"k": 1, "l": 2}, [("/then/maxProperties", "")]),
        ({"patternProperties": {"^a": {"minimum": 2}}, "additionalProperties": UNIQUE}, {"ab": 1, "c": {"tags": [0]}},
         [("/patternProperties/^a/minimum", "/ab"), ("/additionalProperties/properties/tags/items/type", "/c/tags/0")]),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, [("/propertyNames/maxLength", "/ab")]),
        ({"anyOf": [UNIQUE, {"type": "null"}]}, {"tags": ["a", "a"]}, [("/anyOf", "")]),
        ({"properties": {"a": {"not": {"const": 1}}, "b": False}}, {"a": 1, "b": 2},
         [("/properties/a/not", "/a"), ("/properties/b", "/b")]),
    ],
)  # fmt: skip
def test_what_fails_is_named_at_any_depth(schema: object, value: Any, failing: list[tuple[str, str]]) -> None:
    assert validate_final(json.dumps(schema), value) == [Failure(*each) for each in failing]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "(a)\\1"},
        {"$ref": "#"},
        {"type": "integer", "multipleOf": 0},
        {"not": {"type": "array", "uniqueItems": True}},
    ],
)
def test_what_validation_could_not_make_up_for_is_refused_even_then(schema: object) -> None:
    with pytest.raises(GrammarRefused):
        grammar_of(schema, unsupported="declare")


def test_json_object_is_any_object() -> None:
    assert lower_object(JsonObject()).grammar == lower(JsonSchema(schema='{"type": "object"}')).grammar


def test_the_weightier_status_stays() -> None:
    ledger = Ledger()
    ledger.note("/a", "a", "exact", "fine")
    ledger.note("/a", "a", "deferred", "later")
    ledger.note("/a", "a", "stricter", "narrow")
    assert [(e.status, e.reason) for e in ledger] == [("deferred", "later; fine; narrow")]
    assert ledger.with_status("deferred") == ledger.entries()
