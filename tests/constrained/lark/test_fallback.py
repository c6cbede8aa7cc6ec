"""Grammars that are not LALR(1): refused in lark's words, or run by llguidance where it is installed."""

import importlib.util
import sys
from pathlib import Path

import pytest

from ramet.constrained.compile import compile
from ramet.constrained.grammar import CompiledGrammar
from ramet.constrained.lark import fallback
from ramet.constrained.service import CompileService
from ramet.constrained.spec import Lark
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parents[1]))
from vocabularies import byte_vocabulary

CONFLICT = 'start: a "!" | b "?"\na: "x" "y"\nb: X "y"\nX: "x"\n'
AMBIGUOUS = "start: a | b\na: /x+/\nb: /x+/\n"
needs_it = pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="llguidance is not installed")


def with_llguidance(text: str) -> CompiledGrammar:
    return compile(Lark(grammar=text), byte_vocabulary())


def test_without_it_the_conflict_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "is_installed", lambda: False)
    with pytest.raises(GrammarRefused, match="collision") as caught:
        with_llguidance(AMBIGUOUS)
    assert caught.value.code == "invalid_grammar"


@needs_it
class TestInstalled:
    def test_runs_an_ambiguous_grammar(self) -> None:
        state = with_llguidance(AMBIGUOUS).initial()
        assert state.allowed() == [ord("x")]
        after = state.advance(ord("x"))
        end = byte_vocabulary().end_ids[0]
        assert after.accepting and set(after.allowed()) == {ord("x"), end}
        assert after.advance(end).ended
        assert after.advance(ord("y")).is_dead

    def test_old_states_stay_good(self) -> None:
        state = with_llguidance('start: "a" start "a" | "b" start "b" | c\nc: "c" | d\nd: "c"\n').initial()
        here = state.advance_bytes(b"ab")
        one, other = here.advance_bytes(b"cba"), here.advance_bytes(b"bcbba")
        assert one.accepting and other.accepting and one.done
        assert not here.accepting and here.advance_bytes(b"ca").is_dead

    def test_tokens_of_several_bytes(self) -> None:
        vocabulary = byte_vocabulary()
        state = with_llguidance('start: a | b\na: "true" | "t"\nb: "true"\n').initial()
        whole = vocabulary.id_of_bytes[b"true"]
        assert whole in state.allowed()
        assert state.advance(whole).accepting

    def test_json_inside_a_grammar(self) -> None:
        state = with_llguidance('start: "<" obj ">"\nobj: %json {"type": "integer"}\n').initial()
        assert state.advance_bytes(b"<12>").accepting
        assert state.advance_bytes(b"<x").is_dead

    def test_special_tokens_only_where_named(self) -> None:
        vocabulary = byte_vocabulary()
        call = vocabulary.special["<call>"]
        state = with_llguidance('start: a | b\na: "x" <call>\nb: "x" <call> "y"\n').initial()
        assert call not in state.allowed()
        after = state.advance(ord("x"))
        assert after.allowed() == [call]
        assert after.advance(call).accepting

    def test_the_ledger_says_so(self) -> None:
        entry = with_llguidance(AMBIGUOUS).ledger[0]
        assert "llguidance" in getattr(entry, "reason", "")

    def test_what_neither_takes_is_refused_with_both_texts(self) -> None:
        with pytest.raises(GrammarRefused, match="llguidance"):
            with_llguidance("start: nothing")

    def test_through_the_service(self) -> None:
        with CompileService(byte_vocabulary()) as service:
            assert service.compile(Lark(grammar=AMBIGUOUS)).initial().advance_bytes(b"xxx").accepting
