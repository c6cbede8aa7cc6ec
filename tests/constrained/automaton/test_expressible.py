"""Vocabularies that lack bytes: what can't be written is not begun, and refused where nothing else is left."""

import json

import pytest

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.expressible import expressible, spelling_without
from ramet.constrained.compile import compile, compile_grammar
from ramet.constrained.grammar import CompiledGrammar, Engine
from ramet.constrained.regex import dfa as regular
from ramet.constrained.spec import Choice, JsonSchema, Lark, Regex, Spec
from ramet.constrained.state import GrammarState
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused


def vocabulary(*missing: int) -> Vocabulary:
    tokens = [b"" if byte in missing else bytes([byte]) for byte in range(256)]
    return Vocabulary([*tokens, b"true", b"<end>"], special={"<end>": 257}, end_ids=[257])


def never_stuck(grammar: CompiledGrammar, depth: int) -> None:
    """Every state a few tokens away allows something."""
    states = {grammar.initial()}
    for _ in range(depth):
        found: set[GrammarState] = set()
        for state in states:
            allowed = state.allowed()
            assert allowed, state
            found.update(state.advance(token) for token in allowed[:40] if token != 257)
        states = set(list(found)[:60])


def test_knows_what_is_missing() -> None:
    lacking = vocabulary(0x04, 0xF1, 0xFF)
    assert lacking.missing_bytes == {0x04, 0xF1}  # 0xFF is of no UTF-8 text
    assert spelling_without(lacking.missing_bytes).shown == "0x04, 0xF1"
    assert spelling_without(frozenset({0xF1})).code_points == ((0x40000, 0x7FFFF),)


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        (Regex(pattern="a\\x04b"), 0x04),
        (Regex(pattern="[\\u{40000}-\\u{40010}]+"), 0xF1),
        (Choice(choices=("\U00050000", "q\U00050000")), 0xF1),
        (JsonSchema(schema=json.dumps({"const": "q"})), ord("q")),
        (JsonSchema(schema=json.dumps({"type": "string", "pattern": "^q+$"})), ord("q")),
        (JsonSchema(schema=json.dumps({"type": "object", "required": ["q"], "properties": {"q": {}}})), ord("q")),
        (JsonSchema(schema='{"type": "object"}'), ord("{")),
        (JsonSchema(schema='{"type": "array"}'), ord("[")),
        (Lark(grammar='start: "q"'), ord("q")),
    ],
)
def test_refuses_what_needs_a_missing_byte(spec: Spec, missing: int) -> None:
    with pytest.raises(GrammarRefused) as caught:
        compile(spec, vocabulary(missing))
    assert caught.value.code == "vocabulary_cannot_express"
    assert f"0x{missing:02X}" in str(caught.value)
    compile(spec, vocabulary())


def test_leaves_out_only_what_needs_it() -> None:
    lacking = vocabulary(ord("q"))
    grammar = compile(Choice(choices=("aq", "ab", "quit")), lacking)
    assert [chr(t) for t in grammar.initial().allowed()] == ["a"]
    assert [chr(t) for t in grammar.initial().advance(ord("a")).allowed()] == ["b"]
    entry = next(entry for entry in grammar.ledger if getattr(entry, "keyword", "") == "<vocabulary>")
    assert getattr(entry, "status", "") == "stricter"


def test_an_optional_key_is_left_out() -> None:
    schema = {"type": "object", "properties": {"q": {}, "a": {"type": "integer"}}, "additionalProperties": False}
    grammar = compile(JsonSchema(schema=json.dumps(schema)), vocabulary(ord("q")))
    never_stuck(grammar, 6)
    assert grammar.initial().advance_bytes(b'{"a": 1}').accepting
    assert grammar.initial().advance_bytes(b'{"q').is_dead


@pytest.mark.parametrize("pattern", ["^[一丁万倀]+$", "^(一|ab)$", "^.{2}$"])
def test_no_code_point_is_begun_that_can_not_be_ended(pattern: str) -> None:
    grammar = compile(JsonSchema(schema=json.dumps({"type": "string", "pattern": pattern})), vocabulary(0xB8))
    never_stuck(grammar, 6)


def test_free_text_goes_on_in_a_vocabulary_of_ascii() -> None:
    never_stuck(compile(JsonSchema(schema='{"type": "string", "minLength": 2}'), vocabulary(*range(0x80, 0x100))), 5)


def test_what_loses_nothing_is_the_same_object() -> None:
    text = ir.Grammar({"#": ir.Seq((ir.String(maximum=40), ir.Lang(regular.any_bytes())))}, "#")
    assert expressible(text, frozenset({0x04, 0xF1})) is text
    assert expressible(text, frozenset()) is text


def test_controls_are_escaped_in_strings_so_they_are_not_missed() -> None:
    grammar = compile(JsonSchema(schema=json.dumps({"const": "a\u0004"})), vocabulary(0x04))
    assert grammar.initial().advance_bytes(b'"a\\u0004"').accepting


def test_contradictions_are_still_called_that() -> None:
    grammar = ir.Grammar({"#": ir.Seq((ir.Literal(b"q"), ir.NOTHING))}, "#")
    with pytest.raises(GrammarRefused) as caught:
        compile_grammar(grammar, Engine(vocabulary(ord("q"))))
    assert caught.value.code == "grammar_unsatisfiable"
