"""Parts of which some are Lark grammars, one after the other, side by side, again and again.

A configuration belongs to one part (more exactly to one node: the same part may stand in several places); where that
part may end, the nodes that may follow begin beside it. A token may cross a border, or several: each part says at which
nodes of the vocabulary's trie its text may end, and those that follow go on from there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.machine import Configuration, Event, Log
from ramet.constrained.grammar import CompiledGrammar, NetworkGrammar, Reader
from ramet.constrained.lark.automaton import LarkGrammar
from ramet.constrained.lark.load import Tables
from ramet.constrained.state import GrammarState
from ramet.constrained.tables.trie import Ints
from ramet.constrained.vocabulary import Words

Part = NetworkGrammar | LarkGrammar
Tags = tuple[tuple[str, Literal["begin", "end"]], ...]
"""Borders of tagged parts, in order."""
END = -1
"""The target of a step out of the whole."""
_MASKS = 1000
"""Masks remembered."""


class Step(NamedTuple):
    """What may come where a node may end."""

    target: int
    tags: Tags


class Node(NamedTuple):
    """A part in its place."""

    item: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Parts:
    """What the front ends made of each part, and their order; node 0 comes first."""

    items: tuple[ir.Grammar | Tables, ...]
    nodes: tuple[Node, ...]


class PartsReader:
    """See `grammar.Reader`. The state of a configuration is `state in its part * number of nodes + node`."""

    def __init__(self, parts: Sequence[Part], nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.readers: list[Reader] = [parts[node.item].machine for node in nodes]
        self.begins = [parts[node.item].initial().configurations[0] for node in nodes]

    def inside(self, configuration: Configuration) -> tuple[int, Configuration]:
        """Its node, and itself as that node's part knows it."""
        state, node = divmod(configuration.state, len(self.nodes))
        return node, configuration._replace(state=state)

    def outside(self, node: int, configuration: Configuration) -> Configuration:
        """The other way round."""
        return configuration._replace(state=configuration.state * len(self.nodes) + node)

    def standing(self, configuration: Configuration, position: int) -> list[tuple[int, Configuration]]:
        """The configuration in its node, and the beginning of each node that may begin here instead; where there are
        several ways to one, the first."""
        found = [self.inside(configuration)]
        begun: set[int] = set()
        for node, here in found:  # grows while we walk it
            steps = [step for step in self.nodes[node].steps if step.target != END and step.target not in begun]
            ended = self.readers[node].accepting((here,), position) if steps else None
            if ended is None:
                continue
            for step in steps:
                if step.target not in begun:
                    begun.add(step.target)
                    log = _logged(_log_of(here, ended), step.tags, position)
                    found.append((step.target, self.begins[step.target]._replace(log=log)))
        return found

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
        found: dict[tuple[object, ...], Configuration] = {}
        for configuration in configurations:
            for node, here in self.standing(configuration, position):
                for after in read(self.readers[node], here):
                    kept = self.outside(node, after._replace(log=_log_of(here, after)))
                    found.setdefault(kept[:3], kept)  # readings that differ only in their log are one
        return tuple(found.values())

    def accepting(self, configurations: Sequence[Configuration], position: int) -> Configuration | None:
        """A configuration in which the whole may end."""
        for configuration in configurations:
            for node, here in self.standing(configuration, position):
                out = next((step for step in self.nodes[node].steps if step.target == END), None)
                ended = None if out is None else self.readers[node].accepting((here,), position)
                if out is not None and ended is not None:
                    return ended._replace(log=_logged(_log_of(here, ended), out.tags, position))
        return None

    def next_bytes(self, configurations: Sequence[Configuration], position: int) -> set[int]:
        """Bytes that may come next; -1 stands for special tokens."""
        found: set[int] = set()
        for configuration in configurations:
            for node, here in self.standing(configuration, position):
                found |= self.readers[node].next_bytes((here,), position)
        return found

    def is_finished(self, configurations: Sequence[Configuration]) -> bool:
        """Whether nothing may follow."""
        return self.accepting(configurations, 0) is not None and not self.next_bytes(configurations, 0)


def _log_of(before: Configuration, after: Configuration) -> Log:
    return before.log if after.log is None else after.log  # Lark keeps none


def _logged(log: Log, tags: Tags, position: int) -> Log:
    for name, kind in tags:
        log = (Event(name, kind, position), log)
    return log


class PartsGrammar(CompiledGrammar):
    """See the module."""

    def __init__(self, parts: Sequence[Part], nodes: Sequence[Node]) -> None:
        vocabulary = parts[0].vocabulary
        super().__init__(vocabulary, vocabulary.pack(vocabulary.end_ids), {})
        self.parts, self.nodes, self._reader = tuple(parts), tuple(nodes), PartsReader(parts, nodes)
        self.ledger = tuple(entry for part in parts for entry in part.ledger)
        self._masks: dict[Configuration, Words] = {}

    @property
    def machine(self) -> PartsReader:
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

    def _explore(self, node: int, here: Configuration, words: Words) -> None:
        """Mark the tokens that fit, from the root of the trie, across borders, however often."""
        waiting: dict[int, Ints] = {}
        done: dict[int, Ints] = {}
        ended = self._part(node).tokens_from(np.zeros(1, dtype=np.int32), here, words)
        self._follow(node, ended, waiting, done)
        while waiting:
            node, nodes = waiting.popitem()
            done[node] = np.union1d(done[node], nodes) if node in done else nodes
            ended = self._part(node).tokens_from(nodes, self._reader.begins[node], words)
            self._follow(node, ended, waiting, done)

    def _part(self, node: int) -> Part:
        return self.parts[self.nodes[node].item]

    def _follow(self, node: int, ended: Ints, waiting: dict[int, Ints], done: dict[int, Ints]) -> None:
        """What may come behind a node begins at these nodes of the trie, unless it began there before."""
        for target in {step.target for step in self.nodes[node].steps} - {END} if len(ended) else ():
            new = np.setdiff1d(ended, done[target]) if target in done else ended
            if target in waiting:
                new = np.union1d(waiting[target], new)
            if len(new):
                waiting[target] = new.astype(np.int32)
