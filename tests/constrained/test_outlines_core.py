"""Patterns against outlines-core's Index, an engine with another construction.

All tokens that it allows, we allow. It prunes some (its automaton prefers earlier alternatives, so `a(b|bc)*` never
reads "abcb"); each token that only we allow is shown to lead to a text that Python's engine matches.
"""

import random
import re

import outlines_core
import pytest

from ramet.constrained.compile import compile
from ramet.constrained.spec import Regex
from ramet.constrained.vocabulary import Vocabulary

WORDS = ["ab", "abc", "12", "a1", "--", "-1", "é", "bé", "  ", "yes", "no", "x.", ".x"]
TOKENS = [chr(c) for c in range(32, 127)] + WORDS
END = len(TOKENS)
PATTERNS = [
    "(yes|no)[!?]?",
    "[a-c]+-[0-9]{2,3}",
    "([0-9]{1,3}\\.){3}[0-9]{1,3}",
    "a(b|bc)*c?",
    "[^a-z]{0,4}x",
    "(é|b)+",
    "-?(0|[1-9][0-9]*)(\\.[0-9]+)?",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_allows_what_it_allows_and_nothing_unmatched(pattern: str) -> None:
    theirs = outlines_core.Index(pattern, outlines_core.Vocabulary(END, {token: [i] for i, token in enumerate(TOKENS)}))
    vocabulary = Vocabulary([*(t.encode() for t in TOKENS), b"<end>"], special={"<end>": END}, end_ids=[END])
    grammar = compile(Regex(pattern=pattern), vocabulary)
    for seed in range(10):
        choose = random.Random(seed)
        ours, there, text = grammar.initial(), theirs.get_initial_state(), ""
        for _ in range(12):
            allowed = ours.allowed()
            known = set(theirs.get_allowed_tokens(there))
            assert known <= set(allowed)
            for token in set(allowed) - known:
                after = ours.advance(token)
                closing = grammar.closing(after)
                assert closing is not None and re.fullmatch(pattern, text + TOKENS[token] + closing.decode())
            token = choose.choice(sorted(known))
            if token == END:
                break
            text += TOKENS[token]
            ours, there = ours.advance(token), theirs.get_next_state(there, token)
