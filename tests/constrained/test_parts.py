"""Lark grammars as parts of a spec: the language is that of the composition, and masks cross the borders."""

import random
import sys
from pathlib import Path

import pytest

from ramet.constrained.compile import compile
from ramet.constrained.service import CompileService
from ramet.constrained.spec import (
    Choice,
    JsonSchema,
    Lark,
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

SUM = Lark(grammar='start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/\n%ignore " "\n')
MAYBE = Lark(grammar='start: "t"* \n')
CALL = Literal_(text="<call>", special=True)

SEQUENCES: dict[str, tuple[Spec, list[str], list[str]]] = {
    "text before": (Sequence(items=(Choice(choices=("yes", "no")), SUM)), ["yes1+2", "no 12"], ["yes", "1", "yes1+"]),
    "text after": (Sequence(items=(SUM, Literal_(text="!"))), ["1!", "1 + 22!"], ["1", "!", "1+!"]),
    "more of the same": (Sequence(items=(SUM, Regex(pattern="[0-9+]{2}"))), ["1234", "1+2+3", "1++"], ["12", "1+"]),
    "two grammars": (Sequence(items=(MAYBE, SUM, MAYBE)), ["1", "tt1+2t", "1t"], ["tt", "t1+t"]),
    "empty middle": (Sequence(items=(Literal_(text="a"), MAYBE, Literal_(text="e"))), ["ae", "attte"], ["a", "at"]),
    "nested": (
        Sequence(items=(Text(until=("<",)), Literal_(text="<"), SUM, Tagged(name="j", item=JsonSchema(schema="true")))),
        ["ab<1+2true", "<1{}", "<12"],
        ["ab<1", "<true"],
    ),
    "choice": (OneOf(items=(SUM, Choice(choices=("x", "1x")), MAYBE)), ["1+2", "x", "1x", "", "tt"], ["1+2x", "tx"]),
    "repetition": (Repeat(item=SUM, minimum=2, maximum=3, separator=";"), ["1;2", "1+1;2;3"], ["1", "1;2;3;4", "1;"]),
    "any number": (Repeat(item=Sequence(items=(SUM, Literal_(text="!")))), ["", "1!", "1+2!3!"], ["1", "!"]),
    "two or more": (Repeat(item=SUM, minimum=2, separator=" and "), ["1 and 2", "1 and 2 and 3"], ["1", "1 and "]),
    "of what may be nothing": (
        Repeat(item=OneOf(items=(MAYBE, SUM)), separator=","),
        ["", "t,,1", ",", "1+2,t"],
        ["t1"],
    ),
    "none": (Sequence(items=(Literal_(text="a"), Repeat(item=SUM, maximum=0))), ["a"], ["a1", ""]),
    "tag": (Tagged(name="t", item=SUM), ["1+2"], ["", "x"]),
    "deep": (
        OneOf(
            items=(
                Sequence(items=(Literal_(text="sum "), Tagged(name="s", item=SUM))),
                Repeat(item=Sequence(items=(Literal_(text="["), MAYBE, Literal_(text="]"))), minimum=1, maximum=2),
            )
        ),
        ["sum 1+2", "[]", "[tt][t]"],
        ["sum ", "[][][]", "1"],
    ),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_language_is_the_composition(name: str) -> None:
    spec, inside, outside = SEQUENCES[name]
    state = compile(spec, byte_vocabulary()).initial()
    for text in inside:
        assert state.advance_bytes(text.encode()).accepting, text
    for text in outside:
        assert not state.advance_bytes(text.encode()).accepting, text


@pytest.mark.parametrize("name", SEQUENCES)
def test_masks_are_what_can_be_read(name: str) -> None:
    vocabulary = byte_vocabulary()
    grammar = compile(SEQUENCES[name][0], vocabulary)
    for seed in range(4):
        choose, state = random.Random(seed), grammar.initial()
        for _ in range(10):
            allowed = [token for token in state.allowed() if token not in vocabulary.end_id_set]
            assert allowed == readable(state)
            if not allowed:
                break
            state = state.advance(choose.choice(allowed))


def readable(state: GrammarState) -> list[int]:
    vocabulary = byte_vocabulary()
    ids = range(len(vocabulary.token_bytes))
    return [token for token in ids if token not in vocabulary.end_id_set and not state.advance(token).is_dead]


def test_a_special_token_between() -> None:
    vocabulary = byte_vocabulary()
    grammar = compile(Sequence(items=(Text(), CALL, SUM, CALL)), vocabulary)
    call = vocabulary.special["<call>"]
    state = grammar.initial().advance_bytes(b"any").advance(call)
    assert not state.is_dead and call not in state.allowed()
    state = state.advance_bytes(b"1+2")
    assert call in state.allowed()
    after = state.advance(call)
    assert after.accepting and after.done and after.allowed() == list(vocabulary.end_ids)


def test_events_go_through() -> None:
    head, tail = Tagged(name="head", item=Choice(choices=("a",))), Tagged(name="tail", item=Regex(pattern=";"))
    spec = Sequence(items=(head, SUM, tail))
    state = compile(spec, byte_vocabulary()).initial().advance_bytes(b"a12;")
    assert [(event.name, event.kind, event.position) for event in state.events()] == [
        ("head", "begin", 0),
        ("head", "end", 1),
        ("tail", "begin", 3),
        ("tail", "end", 4),
    ]


def test_through_the_service_and_refusals() -> None:
    with CompileService(byte_vocabulary()) as service:
        assert service.compile(Sequence(items=(SUM, CALL))).initial().advance_bytes(b"1").allowed()
        with pytest.raises(GrammarRefused):
            service.compile(Sequence(items=(Lark(grammar="start: nothing"), CALL)))
        assert service.compile(OneOf(items=(SUM, CALL))).initial().advance_bytes(b"1").accepting
        with pytest.raises(GrammarRefused, match=r"\$\.items\[1\]\.item\.grammar"):
            service.compile(OneOf(items=(SUM, Repeat(item=Lark(grammar="start: nothing")))))
        with pytest.raises(GrammarRefused, match="4096 parts") as refusal:
            service.compile(Repeat(item=SUM, maximum=10_000))
    assert refusal.value.code == "grammar_too_complex"


def test_events_of_tagged_grammars() -> None:
    call = Sequence(items=(Literal_(text="<"), Tagged(name="sum", item=SUM), Literal_(text=">")))
    spec = Tagged(name="all", item=Repeat(item=call, separator=","))
    state = compile(spec, byte_vocabulary()).initial()
    assert [tuple(event) for event in state.events()] == [("all", "begin", 0), ("all", "end", 0)]
    state = state.advance_bytes(b"<1+2>,<3>")
    assert [tuple(event) for event in state.events()] == [
        ("all", "begin", 0),
        ("sum", "begin", 1),
        ("sum", "end", 4),
        ("sum", "begin", 7),
        ("sum", "end", 8),
        ("all", "end", 9),
    ]
    assert state.accepting and not state.done
