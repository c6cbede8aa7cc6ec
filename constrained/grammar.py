"""Compiled grammars: what reads bytes, bound to a vocabulary. Immutable for their users; caches fill behind them."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from ramet.constrained.automaton.machine import Configuration, Machine, Stack
from ramet.constrained.closing import Distances, closing_bytes, distances
from ramet.constrained.drafts import forced_tokens
from ramet.constrained.state import GrammarState
from ramet.constrained.tables.arena import GrammarTables, RowStore, TooLarge, build_tables
from ramet.constrained.tables.explore import Explorer
from ramet.constrained.tables.trie import NO_NODES, Ints
from ramet.constrained.vocabulary import Vocabulary, Words

Drafts = dict[tuple[tuple[int, int, Stack], ...], tuple[int, ...]]
"""Configurations without their logs -> what they force."""
_MAX_DRAFTS = 20_000
_log = logging.getLogger(__name__)


class Engine:
    """The machine of one vocabulary with its walks: what all grammars of a tokenizer share."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.machine = Machine()
        self.explorer = Explorer(self.machine, vocabulary)
        self.end_words = vocabulary.pack(vocabulary.end_ids)
        self.rows = RowStore(vocabulary.num_words)
        self.drafts: Drafts = {}
        self.lowering = threading.Lock()
        """Held while a grammar is lowered; masks of others go on meanwhile."""

    @property
    def num_bytes(self) -> int:
        """Roughly what states and masks hold."""
        return self.explorer.num_bytes + self.machine.num_states * 2048 + self.machine.space.num_nodes * 400


class Reader(Protocol):
    """What a grammar runs on: configurations in, configurations out."""

    def read(self, configurations: Sequence[Configuration], byte: int, position: int) -> tuple[Configuration, ...]:
        """After one more byte, which is number `position` of the output."""

    def read_special(
        self, configurations: Sequence[Configuration], token: int, position: int
    ) -> tuple[Configuration, ...]:
        """After a special token."""

    def accepting(self, configurations: Sequence[Configuration], position: int) -> Configuration | None:
        """A configuration in which the output may end, or None."""

    def next_bytes(self, configurations: Sequence[Configuration], position: int) -> set[int]:
        """Bytes that may come next, and perhaps some that counters exclude; -1 stands for special tokens."""

    def is_finished(self, configurations: Sequence[Configuration]) -> bool:
        """Whether nothing may follow."""


class CompiledGrammar(ABC):
    """Made by `compile`; shared by every sequence that uses it."""

    vocabulary: Vocabulary
    """The vocabulary that its masks are over."""
    ledger: Sequence[object] = ()
    """What is enforced and how, one entry a keyword (see `ledger`)."""

    def __init__(self, vocabulary: Vocabulary, end_words: Words, drafts: Drafts) -> None:
        self.vocabulary, self._end_words, self._drafts = vocabulary, end_words, drafts

    @property
    @abstractmethod
    def machine(self) -> Reader:
        """What reads the bytes."""

    @abstractmethod
    def initial(self) -> GrammarState:
        """Before the first token."""

    @abstractmethod
    def allow(self, configuration: Configuration, out: Words) -> None:
        """Add the tokens of one reading to a mask."""

    @property
    def tables(self) -> GrammarTables | None:
        """The grammar as flat int32 for the device; None where it stays with the lazy tables of the host."""
        return None

    def write_mask(self, state: GrammarState, out: Words) -> None:
        """See `GrammarState.mask`."""
        out[:] = 0
        for configuration in state.configurations:
            self.allow(configuration, out)
        if state.accepting:
            np.bitwise_or(out, self._end_words, out=out)

    def closing(self, state: GrammarState) -> bytes | None:
        """Bytes after which the output may end, by a short way; None where none is known."""
        return b"" if state.accepting else None

    def forced(self, state: GrammarState) -> list[int]:
        """See `GrammarState.forced`. Remembered by place: a key of an object is forced in every request alike."""
        key = tuple(configuration[:3] for configuration in state.configurations)
        found = self._drafts.get(key)
        if found is None:
            if len(self._drafts) >= _MAX_DRAFTS:
                self._drafts.clear()
            found = self._drafts[key] = tuple(forced_tokens(state))
        return list(found)


class NetworkGrammar(CompiledGrammar):
    """A rule of a machine: schemas, patterns, choices and segments."""

    def __init__(self, engine: Engine, start_state: int, ledger: Sequence[object] = ()) -> None:
        super().__init__(engine.vocabulary, engine.end_words, engine.drafts)
        self.engine, self.start_state, self.ledger = engine, start_state, ledger

    @property
    def machine(self) -> Machine:
        return self.engine.machine

    def initial(self) -> GrammarState:
        return GrammarState(self, (Configuration(self.start_state, 0, None, None),))

    @cached_property
    def tables(self) -> GrammarTables | None:
        engine = self.engine
        try:
            return build_tables(engine.machine, engine.explorer, self.start_state, engine.rows)
        except TooLarge as reason:
            _log.info("a grammar stays on the CPU path: %s", reason)
            return None

    @cached_property
    def _distances(self) -> Distances | None:
        return distances(self.engine.machine, self.start_state)

    def closing(self, state: GrammarState) -> bytes | None:
        if state.accepting:
            return b""
        return None if self._distances is None else closing_bytes(state, self._distances)

    def allow(self, configuration: Configuration, out: Words) -> None:
        """Of its top frame, then of the frames that a token may fall through to."""
        explorer = self.engine.explorer
        top, counter, stack, _ = configuration
        answer = explorer.answer(explorer.root, top, counter)
        while True:
            if answer.words is not None:
                np.bitwise_or(out, answer.words, out=out)
            if answer.rest is None or stack is None:
                return
            back, counter, stack = stack
            answer = explorer.answer(answer.rest, back, counter)

    def tokens_from(self, nodes: Ints, configuration: Configuration, out: Words) -> Ints:
        """Add the tokens that go on from these nodes of the trie; gives the nodes at which the output may end."""
        explorer = self.engine.explorer
        top, counter, stack, _ = configuration
        answer = explorer.answer(explorer.nodes(nodes), top, counter)
        while True:
            if answer.words is not None:
                np.bitwise_or(out, answer.words, out=out)
            if answer.rest is None:
                return NO_NODES
            if stack is None:
                return answer.rest.nodes
            back, counter, stack = stack
            answer = explorer.answer(answer.rest, back, counter)
