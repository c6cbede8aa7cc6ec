"""A scripted sequence's walk through a compiled grammar: masks in numpy. Knows what any grammar's state can do only."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ramet.constrained.spec import Spec
from ramet.runtime.errors import NotBuilt
from ramet.scripted.model import Logits


class State(Protocol):
    """Where a grammar stands; `constrained.state.GrammarState`."""

    @property
    def done(self) -> bool: ...
    def advance(self, token: int) -> Self: ...
    def mask(self, out: NDArray[np.int32]) -> None: ...
    def forced(self) -> Sequence[int]: ...


class Grammar(Protocol):
    """`constrained.grammar.CompiledGrammar`, as far as one generation needs it."""

    @property
    def ledger(self) -> Sequence[object]: ...
    def initial(self) -> State: ...


GrammarFactory = Callable[[Spec], Grammar]
"""Raises GrammarRefused."""


class GrammarRun:
    """One output on its way through a grammar."""

    def __init__(self, grammar: Grammar, end_ids: Sequence[int]) -> None:
        self._state, self._end_ids = grammar.initial(), frozenset(end_ids)

    @property
    def is_done(self) -> bool:
        """The grammar accepts and nothing may follow."""
        return self._state.done

    def restrict(self, logits: Logits) -> Logits:
        """Logits with -inf where the grammar denies the token."""
        words = np.zeros(-(-len(logits) // 32), np.int32)
        self._state.mask(words)
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(logits)]
        return np.where(allowed, logits, np.float32(-np.inf)).astype(np.float32)

    def advance(self, token: int) -> None:
        if token not in self._end_ids:
            self._state = self._state.advance(token)

    def forced(self) -> Sequence[int]:
        return self._state.forced()


def no_grammars(spec: Spec) -> Grammar:
    raise NotBuilt("a grammar on this scripted engine", hint="Give it a `grammars` compiler.")
