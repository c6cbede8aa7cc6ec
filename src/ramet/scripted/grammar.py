"""A scripted sequence's walk through a compiled grammar: masks in numpy. Knows what any grammar's state can do only."""

import functools
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ramet.constrained import compile as grammars
from ramet.constrained.spec import Spec
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.scheduler.sequence import Tag
from ramet.scripted.model import Logits
from ramet.scripted.tokenizer import ByteTokenizer


class State(Protocol):
    """Where a grammar stands; `constrained.state.GrammarState`."""

    @property
    def done(self) -> bool: ...
    @property
    def accepting(self) -> bool: ...
    def advance(self, token: int) -> Self: ...
    def mask(self, out: NDArray[np.int32]) -> None: ...
    def forced(self) -> Sequence[int]: ...
    def events(self) -> Sequence[tuple[str, str, int]]: ...


class Grammar(Protocol):
    """`constrained.grammar.CompiledGrammar`, as far as one generation needs it."""

    @property
    def ledger(self) -> Sequence[object]: ...
    def initial(self) -> State: ...


GrammarFactory = Callable[[Spec], Grammar]
"""Raises GrammarRefused."""


class GrammarRun:
    """One output on its way through a grammar."""

    def __init__(self, grammar: Grammar, stop_ids: Sequence[int] = ()) -> None:
        self._state, self._stop_ids = grammar.initial(), list(stop_ids)
        self._num_seen = 0
        self._new_tags: list[Tag] = []

    @property
    def is_done(self) -> bool:
        """The grammar accepts and nothing may follow."""
        return self._state.done

    def is_text(self, token: int) -> bool:
        """A stop token that ends nothing, for the grammar is not satisfied before it."""
        return token in self._stop_ids and not self._state.accepting

    def restrict(self, logits: Logits) -> Logits:
        """Logits with -inf where the grammar denies the token."""
        words = np.zeros(-(-len(logits) // 32), np.int32)
        self._state.mask(words)
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(logits)]
        if self._stop_ids and self._state.accepting:
            allowed[self._stop_ids] = 1
        return np.where(allowed, logits, np.float32(-np.inf)).astype(np.float32)

    def advance(self, token: int) -> None:
        self._state = self._state.advance(token)
        events = self._state.events()  # none any more once the end token was taken, so they are read at each token
        for name, kind, offset in events[self._num_seen :]:
            self._new_tags.append((name, "end" if kind == "end" else "begin", offset))
        self._num_seen = max(self._num_seen, len(events))

    def new_tags(self) -> list[Tag]:
        """Begins and ends of tagged parts that were not told yet."""
        new, self._new_tags = self._new_tags, []
        return new

    def forced(self) -> Sequence[int]:
        return self._state.forced()


@functools.cache
def _byte_vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(ByteTokenizer())


def over_bytes(spec: Spec) -> Grammar:
    """Ramet's own grammars over ByteTokenizer's vocabulary."""
    return grammars.compile(spec, _byte_vocabulary())
