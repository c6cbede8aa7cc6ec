"""A compiled grammar: a rule of a machine, bound to a vocabulary. Immutable for its users; caches fill behind it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ramet.constrained.automaton.machine import Configuration, Machine, Stack
from ramet.constrained.drafts import forced_tokens
from ramet.constrained.state import GrammarState
from ramet.constrained.tables.arena import GrammarTables, RowStore, TooLarge, build_tables
from ramet.constrained.tables.explore import Explorer
from ramet.constrained.vocabulary import Vocabulary, Words

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
        self.drafts: dict[tuple[tuple[int, int, Stack], ...], tuple[int, ...]] = {}

    @property
    def num_bytes(self) -> int:
        """Roughly what states and masks hold."""
        return self.explorer.num_bytes + self.machine.num_states * 2048 + self.machine.space.num_nodes * 400


@dataclass(frozen=True, eq=False, kw_only=True)
class CompiledGrammar:
    """Made by `compile`; shared by every sequence that uses it."""

    engine: Engine
    start_state: int
    ledger: Sequence[object] = ()
    """What is enforced and how, one entry a keyword (see `ledger`)."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that its masks are over."""
        return self.engine.vocabulary

    @property
    def machine(self) -> Machine:
        """The states."""
        return self.engine.machine

    def initial(self) -> GrammarState:
        """Before the first token."""
        return GrammarState(self, (Configuration(self.start_state, 0, None, None),))

    @cached_property
    def tables(self) -> GrammarTables | None:
        """The grammar as flat int32 for the device; None where it is too large and stays with the lazy tables."""
        engine = self.engine
        try:
            return build_tables(engine.machine, engine.explorer, self.start_state, engine.rows)
        except TooLarge as reason:
            _log.info("a grammar stays on the CPU path: %s", reason)
            return None

    def write_mask(self, state: GrammarState, out: Words) -> None:
        """See `GrammarState.mask`."""
        out[:] = 0
        for configuration in state.configurations:
            self._allow(configuration, out)
        if state.accepting:
            np.bitwise_or(out, self.engine.end_words, out=out)

    def forced(self, state: GrammarState) -> list[int]:
        """See `GrammarState.forced`. Remembered by place: a key of an object is forced in every request alike."""
        key = tuple(configuration[:3] for configuration in state.configurations)
        drafts = self.engine.drafts
        found = drafts.get(key)
        if found is None:
            if len(drafts) >= _MAX_DRAFTS:
                drafts.clear()
            found = drafts[key] = tuple(forced_tokens(state))
        return list(found)

    def _allow(self, configuration: Configuration, out: Words) -> None:
        """The tokens of one reading: of its top frame, then of the frames that a token may fall through to."""
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
