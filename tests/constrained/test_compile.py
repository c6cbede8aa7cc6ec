"""Specs end to end on a small vocabulary: what is accepted, what ends where, what is reported and what is refused."""

import sys
from pathlib import Path

import pytest

from ramet.constrained.automaton.machine import Event
from ramet.constrained.compile import cache_of, compile
from ramet.constrained.spec import (
    Choice,
    JsonSchema,
    Literal_,
    OneOf,
    Regex,
    Repeat,
    Sequence,
    Spec,
    Tagged,
    Text,
)
from ramet.constrained.state import GrammarState
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from vocabularies import byte_vocabulary

VOCABULARY = byte_vocabulary()
END, CALL = VOCABULARY.special["<end>"], VOCABULARY.special["<call>"]


def after(spec: Spec, text: str) -> GrammarState:
    return compile(spec, VOCABULARY).initial().advance_bytes(text.encode())


def accepts(spec: Spec, text: str) -> bool:
    state = after(spec, text)
    return not state.is_dead and state.accepting


def schema(text: str) -> JsonSchema:
    return JsonSchema(schema=text)


NUMBERED = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
NAMED = '{"type":"object","properties":{"name":{"type":"boolean"}},"required":["name"],"additionalProperties":false}'
RECURSIVE = '{"type":"object","properties":{"n":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["n"]}'
LETTERS = Choice(choices=("a", "b"))
CALLS = Sequence(
    items=(
        Text(until=("<call>", "STOP")),
        Literal_(text="STOP"),
        Tagged(name="name", item=Choice(choices=("add", "addition"))),
        Literal_(text="("),
        Tagged(name="arguments", item=schema(NUMBERED)),
        Literal_(text=")"),
    )
)

TABLE: list[tuple[Spec, list[str], list[str]]] = [
    (Regex(pattern="(yes|no)[!]?"), ["yes", "no!"], ["", "ye", "yes!!", "maybe"]),
    (Regex(pattern="[à-ÿ]+"), ["é", "çé"], ["e", ""]),
    (Choice(choices=("a", "ab", "é")), ["a", "ab", "é"], ["b", "abc"]),
    (Literal_(text="x"), ["x"], ["xx", ""]),
    (Text(until=("END",)), ["", "EN", "free text\n"], ["END", "a END"]),
    (
        Repeat(item=Choice(choices=("a", "b")), minimum=1, maximum=3, separator=","),
        ["a", "a,b,a"],
        ["", "a,", "a,a,a,a"],
    ),
    (OneOf(items=(Regex(pattern="[0-9]+"), schema('{"type":"boolean"}'))), ["12", "true"], ["tru", "12true"]),
    (CALLS, ['hello STOPadd({"n":1})', 'STOPaddition({"n": 2})'], ['STOPad({"n":1})', 'STOPadd({"n":"x"})']),
]


@pytest.mark.parametrize(("spec", "inside", "outside"), TABLE)
def test_language(spec: Spec, inside: list[str], outside: list[str]) -> None:
    for text in inside:
        assert accepts(spec, text), text
    for text in outside:
        assert not accepts(spec, text), text


def test_text_and_literal_meet_at_the_trigger() -> None:
    spec = Sequence(items=(Text(until=("ab",)), Literal_(text="ab"), Literal_(text="!")))
    assert accepts(spec, "aaab!") and accepts(spec, "ab!") and not accepts(spec, "abab!")


def test_special_token_is_not_its_characters() -> None:
    spec = Sequence(items=(Text(until=()), Literal_(text="<call>", special=True), Literal_(text="x")))
    state = compile(spec, VOCABULARY).initial()
    assert CALL in state.allowed()
    assert state.advance(CALL).advance(ord("x")).done
    assert not accepts(spec, "<call>x")
    assert CALL not in compile(Text(until=()), VOCABULARY).initial().allowed()


def test_end_ids_exactly_where_the_output_may_end() -> None:
    state = compile(Choice(choices=("a", "ab")), VOCABULARY).initial()
    assert END not in state.allowed()
    state = state.advance(ord("a"))
    assert set(state.allowed()) == {END, ord("b")} and not state.done
    state = state.advance(ord("b"))
    assert state.allowed() == [END] and state.done
    ended = state.advance(END)
    assert ended.ended and ended.accepting and ended.allowed() == [END] and not ended.is_dead


def test_forbidden_token_is_dead_and_never_free() -> None:
    state = compile(Regex(pattern="a+"), VOCABULARY).initial()
    for token in (ord("b"), END, CALL, len(VOCABULARY.token_bytes) + 3, VOCABULARY.size + 7, -1):
        dead = state.advance(token)
        assert dead.is_dead and dead.allowed() == [] and not dead.accepting
    assert state.advance(ord("a")).accepting, "the state before is untouched"


def test_snapshots_are_the_rollback() -> None:
    state = compile(Regex(pattern="a{2}b{2,400}"), VOCABULARY).initial()
    states = [state := state.advance(token) for token in b"aab"]
    assert states[2].advance(ord("b")).accepting and not states[2].accepting
    assert states[0].advance(ord("a")).allowed() == states[1].allowed()


def test_events_say_where_parts_begin_and_end() -> None:
    state = after(CALLS, 'hi STOPadd({"n":12})')
    assert state.events() == [
        Event("name", "begin", 7),
        Event("name", "end", 10),
        Event("arguments", "begin", 11),
        Event("arguments", "end", 19),
    ]
    assert after(CALLS, "hi STOPadd").events() == [Event("name", "begin", 7)]
    assert after(CALLS, 'STOPadd({"n":1}').events()[-1] == Event("arguments", "end", 15), "known at once"


def test_events_of_repeated_parts() -> None:
    spec = Repeat(item=Tagged(name="n", item=Regex(pattern="[0-9]+")), minimum=1, separator=";")
    assert [event[1:] for event in after(spec, "1;22").events()] == [("begin", 0), ("end", 1), ("begin", 2), ("end", 4)]


def test_forced_tokens_are_canonical_and_stop_at_choices() -> None:
    compact = JsonSchema(schema=NAMED, whitespace="compact")
    state = compile(compact, VOCABULARY).initial()
    tokens = state.forced()
    assert b"".join(VOCABULARY.token_bytes[t] for t in tokens) == b'{"name":'
    for token in tokens:
        assert token in state.allowed()
        state = state.advance(token)
    assert state.forced() == [], "true or false is a choice"
    assert [VOCABULARY.token_bytes[t] for t in state.advance(ord("t")).forced()] == [b"r", b"u", b"e", b"}"]


def test_forced_keeps_off_tokens_that_could_grow() -> None:
    state = compile(Regex(pattern='x(","|";)'), VOCABULARY).initial()
    assert state.forced() == [ord("x")], 'the quotation mark may be the token `",`'


@pytest.mark.parametrize(
    ("spec", "text", "closing"),
    [
        (schema(NAMED), "", b'{"name":true}'),
        (schema(NAMED), '{"name":t', b"rue}"),
        (schema('{"type":"string","minLength":3}'), '"a', b'  "'),
        (schema('{"type":"array","items":{"type":"integer"},"minItems":3}'), "[7", b",0,0]"),
        (schema(RECURSIVE), "{", b'"n":null}'),
        (Regex(pattern="a{3,9}b?"), "a", b"aa"),
        (CALLS, "hi STOP", b'add({"n":0})'),
    ],
)
def test_short_way_to_a_legal_end(spec: Spec, text: str, closing: bytes) -> None:
    state = after(spec, text)
    found = state.grammar.closing(state)
    assert found is not None and state.advance_bytes(found).accepting
    assert len(found) == len(closing), found
    tokens = state.min_tokens_to_accept()
    assert tokens is not None and 0 < tokens <= len(found)
    assert state.advance_bytes(found).min_tokens_to_accept() == 0


def test_compiled_once_and_shared() -> None:
    before = cache_of(VOCABULARY).statistics.hits
    assert compile(Regex(pattern="shared"), VOCABULARY) is compile(Regex(pattern="shared"), VOCABULARY)
    assert cache_of(VOCABULARY).statistics.hits == before + 1


@pytest.mark.parametrize(
    "spec",
    [
        Regex(pattern="["),
        Choice(choices=()),
        Literal_(text="<nosuch>", special=True),
        Sequence(items=(Literal_(text="a"), Regex(pattern="(?<=b)$c"))),
        Regex(pattern="a[]"),
    ],
)
def test_refusals(spec: Spec) -> None:
    for _ in range(2):
        with pytest.raises(GrammarRefused):
            compile(spec, VOCABULARY)
