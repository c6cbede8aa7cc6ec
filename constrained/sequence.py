"""Parts one after the other of which some are Lark grammars: `Sequence((Text(...), Literal_(...), Lark(...)))`.

A network and a Lark grammar keep different books, so they are not made into one automaton; a configuration belongs to
one part, and where that part may end, the next one begins beside it. A token may cross the border, or several: each
part says at which nodes of the vocabulary's trie its text may end, and the next one goes on from there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.machine import Configuration
from ramet.constrained.grammar import CompiledGrammar, NetworkGrammar, Reader
from ramet.constrained.lark.automaton import LarkGrammar
from ramet.constrained.lark.load import Tables
from ramet.constrained.state import GrammarState
from ramet.constrained.vocabulary import Words

Part = NetworkGrammar | LarkGrammar
_MASKS = 1000
"""Masks remembered."""


@dataclass(frozen=True)
class Parts:
    """What the front ends made of each part."""

    items: tuple[ir.Grammar | Tables, ...]


class SequenceReader:
    """See `grammar.Reader`. The state of a configuration is `state in its part * number of parts + part`."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.readers: list[Reader] = [part.machine for part in parts]
        self.begins = [part.initial().configurations[0] for part in parts]

    def inside(self, configuration: Configuration) -> tuple[int, Configuration]:
        """Its part, and itself as that part knows it."""
        state, part = divmod(configuration.state, len(self.readers))
        return part, configuration._replace(state=state)

    def outside(self, part: int, configuration: Configuration) -> Configuration:
        """The other way round."""
        return configuration._replace(state=configuration.state * len(self.readers) + part)

    def standing(self, configuration: Configuration, position: int) -> Iterator[tuple[int, Configuration]]:
        """The configuration in its part, and at the beginning of each part that may begin here instead."""
        part, here = self.inside(configuration)
        yield part, here
        while part + 1 < len(self.readers):
            ended = self.readers[part].accepting((here,), position)
            if ended is None:
                return
            part, here = part + 1, self.begins[part + 1]._replace(log=ended.log)
            yield part, here

    def read(self, configurations: Sequence[Configuration], byte: int, position: int) -> tuple[Configuration, ...]:
        """After one more byte."""
        return self._after(configurations, position, lambda reader, here: reader.read((here,), byte, position))

    def read_special(
        self, configurations: Sequence[Configuration], token: int, position: int
    ) -> tuple[Configuration, ...]:
        """After a special token."""
        return self._after(configurations, position, lambda reader, here: reader.read_special((here,), token, position))

    def _after(
        self,
        configurations: Sequence[Configuration],
        position: int,
        read: Callable[[Reader, Configuration], tuple[Configuration, ...]],
    ) -> tuple[Configuration, ...]:
        found: dict[Configuration, None] = {}
        for configuration in configurations:
            for part, here in self.standing(configuration, position):
                for after in read(self.readers[part], here):
                    log = here.log if after.log is None else after.log  # Lark keeps none
                    found[self.outside(part, after._replace(log=log))] = None
        return tuple(found)

    def accepting(self, configurations: Sequence[Configuration], position: int) -> Configuration | None:
        """A configuration in which the last part may end."""
        for configuration in configurations:
            for part, here in self.standing(configuration, position):
                if part == len(self.readers) - 1 and (ended := self.readers[part].accepting((here,), position)):
                    return ended._replace(log=here.log if ended.log is None else ended.log)
        return None

    def next_bytes(self, configurations: Sequence[Configuration], position: int) -> set[int]:
        """Bytes that may come next; -1 stands for special tokens."""
        found: set[int] = set()
        for configuration in configurations:
            for part, here in self.standing(configuration, position):
                found |= self.readers[part].next_bytes((here,), position)
        return found

    def is_finished(self, configurations: Sequence[Configuration]) -> bool:
        """Whether nothing may follow."""
        return self.accepting(configurations, 0) is not None and not self.next_bytes(configurations, 0)


class SequenceGrammar(CompiledGrammar):
    """See the module."""

    def __init__(self, parts: Sequence[Part]) -> None:
        vocabulary = parts[0].vocabulary
        super().__init__(vocabulary, vocabulary.pack(vocabulary.end_ids), {})
        self.parts, self._reader = tuple(parts), SequenceReader(parts)
        self.ledger = tuple(entry for part in parts for entry in part.ledger)
        self._masks: dict[Configuration, Words] = {}

    @property
    def machine(self) -> SequenceReader:
        return self._reader

    def initial(self) -> GrammarState:
        return GrammarState(self, (self._reader.outside(0, self._reader.begins[0]),))

    def allow(self, configuration: Configuration, out: Words) -> None:
        """The tokens of one reading."""
        key = configuration._replace(log=None)
        words = self._masks.get(key)
        if words is None:
            if len(self._masks) >= _MASKS:
                self._masks.clear()
            words = self._masks[key] = np.zeros_like(out)
            self._explore(*self._reader.inside(key), words)
        np.bitwise_or(out, words, out=out)

    def _explore(self, part: int, here: Configuration, words: Words) -> None:
        """Mark the tokens that fit, from the root of the trie, across borders."""
        nodes = np.zeros(1, dtype=np.int32)
        while len(nodes):
            nodes = self.parts[part].tokens_from(nodes, here, words)
            part += 1
            if part == len(self.parts):
                return
            here = self._reader.begins[part]
