"""User reports against other engines whose point is tokens: the identifiers are those of the case list."""

import sys
from pathlib import Path

import pytest

from ramet.constrained.compile import compile
from ramet.constrained.grammar import NetworkGrammar
from ramet.constrained.spec import JsonSchema, Regex
from ramet.constrained.vocabulary import Vocabulary

sys.path.insert(0, str(Path(__file__).parent))
from vocabularies import byte_vocabulary

VOCABULARY = byte_vocabulary()
END = VOCABULARY.special["<end>"]


def test_o04_classes_are_over_code_points_however_tokens_cut_them() -> None:
    lead, tail = "é".encode()
    state = compile(Regex(pattern="[é]"), VOCABULARY).initial()
    assert state.allowed() == [lead]
    half = state.advance(lead)
    assert half.allowed() == [tail] and not half.accepting
    assert half.advance(tail).done


@pytest.mark.parametrize("cut", [[b"\\", b"n"], [b"\\n"]])
def test_o05_an_escape_may_be_split_over_tokens(cut: list[bytes]) -> None:
    tokens = [bytes([b]) for b in range(256)] + [b"\\n"]
    state = compile(JsonSchema(schema='{"type":"string"}'), Vocabulary(tokens)).initial().advance(ord('"'))
    for piece in cut:
        token = tokens.index(piece)
        assert token in state.allowed()
        state = state.advance(token)
    assert state.advance(ord('"')).done


def test_o26_a_bound_is_a_counter_and_no_chain_of_states() -> None:
    grammar = compile(JsonSchema(schema='{"type":"string","maxLength":100000}'), VOCABULARY)
    assert isinstance(grammar, NetworkGrammar)
    state = grammar.initial().advance(ord('"'))
    state.allowed()
    before, walks = grammar.machine.num_states, grammar.engine.explorer.statistics()["walks"]
    for _ in range(1000):
        assert len(state.allowed()) > 100
        state = state.advance(ord("x"))
    assert grammar.machine.num_states == before
    assert grammar.engine.explorer.statistics()["walks"] == walks


def test_o31_whitespace_is_bounded_and_none_follows_the_value() -> None:
    state = compile(JsonSchema(schema='{"type":"object"}'), VOCABULARY).initial().advance_bytes(b"{\n")
    for _ in range(20):
        assert ord(" ") in state.allowed()
        state = state.advance(ord(" "))
    assert ord(" ") not in state.allowed() and ord("\n") not in state.allowed()
    assert state.advance(ord("}")).allowed() == [END]


def test_o32_all_end_ids_are_masked_until_the_state_accepts_and_all_allowed_then() -> None:
    ends = [256, 257, 258]
    vocabulary = Vocabulary([bytes([b]) for b in range(256)] + [b"<a>", b"<b>", b"<c>"], end_ids=ends)
    state = compile(JsonSchema(schema='{"type":"object"}'), vocabulary).initial()
    for byte in b"{}":
        assert not set(ends) & set(state.allowed())
        state = state.advance(byte)
    assert state.allowed() == ends, "O33: when nothing may follow, only end ids are allowed"


def test_o34_ids_of_equal_bytes_get_equal_bits() -> None:
    vocabulary = Vocabulary([b"a", b"b", b"a", b"ab", b"ab"])
    state = compile(Regex(pattern="a+b"), vocabulary).initial()
    assert state.allowed() == [0, 2, 3, 4]
    assert state.advance(2).allowed() == state.advance(0).allowed()
