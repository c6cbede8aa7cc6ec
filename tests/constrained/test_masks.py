"""Masks against brute force: every token of the vocabulary, read byte by byte by the plain interpreter."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.expressible import expressible
from ramet.constrained.automaton.interpreter import Configurations, Interpreter
from ramet.constrained.compile import compile_grammar
from ramet.constrained.grammar import Engine
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent / "automaton"))
from random_grammars import GRAMMARS

PIECES = [bytes([b]) for b in b'abcx"{}[],: \n\\nu01(true2'] + [b"\xc3", b"\xa9"]
MERGES = [
    *(b'aa ab bc abc aaaa "a" "a": ":1 ", "}} ", {" {"a":" ]] [1 1,1 "], ["" ,"b ((a (( :{" aX'.split(b" ")),
    *(b"\n ", b": ", b', "', b'"}', b"tr", b"ue", b"true", b"true,", b"12", "é".encode(), b'\\"', b"\\u00", b'{"ab":'),
    *(b'""', b'"":', b"[[", b"[]", b"[],", b"{}", b"aab", b'b"', b'ab",', b"xa", b'x":"', b"  ", b"    "),
]
TOKENS = [*dict.fromkeys([*PIECES, *filter(None, MERGES)]), b"ab", b"<end>", b""]  # one duplicate, one end, one hole
END = len(TOKENS) - 2
VOCABULARY = Vocabulary(TOKENS, special={"<end>": END}, end_ids=[END], size=len(TOKENS) + 37)
ENGINE = Engine(VOCABULARY)


def brute_force(oracle: Interpreter, configurations: Configurations) -> list[int]:
    """Ids after which the output can still be completed, and the end where it may end."""
    after: dict[bytes, Configurations] = {b"": configurations}

    def run(data: bytes) -> Configurations:
        if data not in after:
            before = run(data[:-1])
            after[data] = oracle.step(before, data[-1]) if before else before
        return after[data]

    found = [i for i, data in enumerate(TOKENS) if data and i != END and run(data)]
    return sorted(found + ([END] if oracle.accepts(configurations) else []))


def walk(grammar: ir.Grammar, seed: int, steps: int) -> Iterator[None]:
    oracle = Interpreter(expressible(grammar, VOCABULARY.missing_bytes))
    theirs = oracle.start()
    state = compile_grammar(grammar, ENGINE).initial()
    choose = random.Random(seed)
    for _ in range(steps):
        legal = brute_force(oracle, theirs)
        assert state.allowed() == legal
        if not legal:  # the way on needs a byte that this small vocabulary lacks
            return
        token = choose.choice(legal)
        state = state.advance(token)
        if token == END:
            assert state.ended and state.allowed() == [END]
            return
        theirs = oracle.run(theirs, TOKENS[token])
        assert not state.is_dead
        if len(theirs) > 60:
            return
        yield


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(GRAMMARS, st.integers(0, 2**32))
def test_equal_brute_force_on_random_walks(grammar: ir.Grammar, seed: int) -> None:
    try:
        for _ in walk(grammar, seed, 10):
            pass
    except GrammarRefused:
        assert not Interpreter(expressible(grammar, VOCABULARY.missing_bytes)).start()


def test_padding_holes_and_duplicates() -> None:
    grammar = ir.Grammar({"#": ir.Repeat(ir.Literal(b"ab"), 1)}, "#")
    state = compile_grammar(grammar, ENGINE).initial()
    words = np.full(VOCABULARY.num_words, -1, dtype=np.int32)
    state.mask(words)
    allowed = VOCABULARY.unpack(words).tolist()
    assert {TOKENS[i] for i in allowed} == {b"a", b"ab"}
    assert sum(TOKENS[i] == b"ab" for i in allowed) == 2
