"""What is remembered by vocabulary goes with it."""

import gc
import weakref

from ramet.constrained.compile import cache_of, compile
from ramet.constrained.spec import Choice
from ramet.constrained.vocabulary import Vocabulary


def vocabulary() -> Vocabulary:
    return Vocabulary([*(bytes([byte]) for byte in range(256)), b"<end>"], special={"<end>": 256}, end_ids=[256])


def test_compiled_grammars_are_freed_with_their_vocabulary() -> None:
    made = vocabulary()
    grammar = compile(Choice(choices=("a",)), made)
    assert compile(Choice(choices=("a",)), made) is grammar
    gone = weakref.ref(cache_of(made))
    del made, grammar
    gc.collect()
    assert gone() is None


def test_missing_bytes_are_those_of_text() -> None:
    assert vocabulary().missing_bytes == frozenset()
    assert Vocabulary([b"a", b"bc"]).missing_bytes == set(range(0xC0)) - set(b"abc") | set(range(0xC2, 0xF5))
