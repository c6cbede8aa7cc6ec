"""Which tokens fit in a state: a walk of the vocabulary's trie beside the machine (`descend` does the inner loop).

A walk starts with some trie nodes in one state and stays in one frame. It yields, for every window of the frame's
counter, the nodes it reaches (tokens that end there are allowed) and the nodes at which the frame may end (the rest
of the token is read by the frame below, in a walk of its own). A call is a walk in the callee, whose counter is known,
so its result is plain nodes. Every walk is remembered by (nodes, state): what grammars share is walked once.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ramet.constrained.automaton.items import UNBOUNDED, Action
from ramet.constrained.automaton.machine import Machine
from ramet.constrained.tables.descend import Descent, best_descent
from ramet.constrained.tables.trie import Ints, Trie, spans
from ramet.constrained.vocabulary import Vocabulary, Words

Window = tuple[int, int]
"""Values of the counter, both ends included, in which something holds."""

_Add = Callable[[tuple[int, int, int, int], Ints], None]
"""Takes (state, low, high, add) and nodes, to be walked later."""

EVERY: Window = (0, UNBOUNDED)
_NONE = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a frame does to a token, at one value of its counter."""

    words: Words | None
    """Tokens that end inside the frame or at its end; None: none."""
    rest: "NodeSet | None"
    """Where the frame may end with more of the token to come; None: nowhere."""


@dataclass(eq=False, slots=True)
class NodeSet:
    """A set of trie nodes; equal sets are one object."""

    nodes: Ints
    number: int


@dataclass(eq=False, slots=True)
class Walk:
    """The result of a walk, by windows of the frame's counter."""

    reached: dict[Window, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[Window, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    specials: dict[Window, list[int]] = field(default_factory=lambda: defaultdict(list))
    _cuts: list[int] | None = None
    _answers: dict[int, Answer] = field(default_factory=dict)

    def cut_of(self, counter: int) -> int:
        """The number of the interval of counters with one answer."""
        if self._cuts is None:
            windows = [*self.reached, *self.ended, *self.specials]
            self._cuts = sorted({c for low, high in windows for c in (low, high + 1)})
        number = 0
        for cut in self._cuts:
            if counter < cut:
                break
            number += 1
        return number


def _at(parts: dict[Window, list[Ints]], counter: int) -> list[Ints]:
    return [nodes for (low, high), all_nodes in parts.items() if low <= counter <= high for nodes in all_nodes]


def _grouped(keys: npt.NDArray[np.integer[Any]], nodes: Ints) -> Iterator[tuple[int, Ints]]:
    """The nodes of each key."""
    if not len(keys):
        return
    first = int(keys[0])
    if (keys == first).all():
        yield first, nodes
        return
    order = np.argsort(keys, kind="stable")
    keys, nodes = keys[order], nodes[order]
    cuts = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    for start, end in itertools.pairwise([0, *cuts.tolist(), len(keys)]):
        yield int(keys[start]), nodes[start:end]


def _without_one(here: Ints, start: Ints) -> Ints:
    """`here` less one occurrence of each start node: what is left was reached by reading."""
    values, counts = np.unique(here, return_counts=True)
    return values[counts > np.isin(values, start)]


def _merged(parts: list[Ints]) -> Ints:
    if not parts:
        return _NONE
    return np.unique(np.concatenate(parts))


@dataclass(slots=True)
class _Task:
    """Nodes that stand in one state, with what happened to the counter since the walk began."""

    state: int
    low: int
    high: int
    add: int

    def after(self, action: Action) -> tuple[int, int, int] | None:
        """The window and growth once the action is done too; None: it can't be."""
        low, high = max(self.low, action.low - self.add), min(self.high, action.high - self.add)
        return None if low > high else (low, high, self.add + action.add)


class Explorer:
    """Walks and answers of one machine over one vocabulary, remembered."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        self.machine, self.vocabulary = machine, vocabulary
        self.trie: Trie = vocabulary.trie
        self.descent: Descent = best_descent(machine, self.trie)
        self._sets: dict[bytes, NodeSet] = {}
        self._walks: dict[tuple[int, int, bool], Walk] = {}
        self.num_bytes = 0
        """Bytes of the answers kept."""
        self.root = self._node_set(np.zeros(1, dtype=np.int32))

    def answer(self, start: NodeSet, state: int, counter: int, *, fresh: bool = False) -> Answer:
        """What a frame in `state` with this counter does to tokens that stand at `start`.

        fresh: the frame was entered just now, so it can't end before it has read something.
        """
        walk = self._walks.get((start.number, state, fresh))
        if walk is None:
            with self.machine.lock:
                walk = self._walks[start.number, state, fresh] = self._walk(start, state, fresh)
        cut = walk.cut_of(counter)
        found = walk._answers.get(cut)
        if found is None:
            with self.machine.lock:
                found = walk._answers[cut] = self._answer(walk, counter)
        return found

    def _answer(self, walk: Walk, counter: int) -> Answer:
        reached = _at(walk.reached, counter)
        specials = [token for (a, b), ids in walk.specials.items() if a <= counter <= b for token in ids]
        words = self.vocabulary.pack(specials) if specials or reached else None
        if words is not None:
            for nodes in reached:
                self.descent.mark(nodes, words)
            words = words if words.any() else None
        self.num_bytes += 0 if words is None else words.nbytes
        ended = _at(walk.ended, counter)
        return Answer(words, self._node_set(_merged(ended)) if ended else None)

    def _node_set(self, nodes: Ints) -> NodeSet:
        nodes = np.ascontiguousarray(nodes, dtype=np.int32)
        key = nodes.tobytes()
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = NodeSet(nodes, len(self._sets))
            self.num_bytes += nodes.nbytes
        return found

    # Walking ---------------------------------------------------------------------------------------------------------

    def _walk(self, start: NodeSet, state: int, fresh: bool) -> Walk:
        walk = Walk()
        waiting: dict[tuple[int, int, int, int], list[Ints]] = {}

        def add(task: tuple[int, int, int, int], nodes: Ints) -> None:
            if len(nodes):
                waiting.setdefault(task, []).append(nodes)

        self._descend(walk, _Task(state, *EVERY, 0), start.nodes, add, fresh)
        while waiting:
            key = next(iter(waiting))
            nodes = _merged(waiting.pop(key))
            self._descend(walk, _Task(*key), nodes, add, False)
        return walk

    def _descend(self, walk: Walk, task: _Task, nodes: Ints, add: _Add, fresh: bool) -> None:
        """Follow free edges from these nodes down to the leaves; hand everything else to `add`."""
        nodes = self._inner(nodes)
        found = self.descent(nodes, np.full(len(nodes), task.state, dtype=np.int32))
        if len(found.reached):
            walk.reached[task.low, task.high].append(found.reached)
        if len(found.act_nodes):
            self._act(walk, task, found.act_nodes, found.act_targets, found.act_numbers, add)
        for state, here in _grouped(found.exit_states, found.exit_nodes):
            ended = here
            if fresh and state == task.state:
                ended = _without_one(here, nodes)  # where it has read nothing yet
            self._leave_row(walk, task, state, here, ended, add)

    def _inner(self, nodes: Ints) -> Ints:
        """Those with children: only from them can more be read."""
        return nodes[self.trie.first_child[nodes + 1] > self.trie.first_child[nodes]]

    def _act(self, walk: Walk, task: _Task, nodes: Ints, states: Ints, acting: Ints, add: _Add) -> None:
        """Edges with actions: group by target and action."""
        for pair, chosen in _grouped(states.astype(np.int64) << 16 | acting, nodes):
            after = task.after(self.machine.action_values[pair & 0xFFFF])
            if after is not None:
                walk.reached[after[0], after[1]].append(chosen)
                add((pair >> 16, *after), chosen)

    def _leave_row(self, walk: Walk, task: _Task, state: int, here: Ints, ended: Ints, add: _Add) -> None:
        """Calls, ends, special tokens and second edges of one state, for the nodes that stand in it."""
        exits = self.machine.exits(state)
        for token, _, action in exits.specials:
            after = task.after(action)
            if after is not None and (here == 0).any():
                walk.specials[after[0], after[1]].append(token)
        for action in exits.accepts if len(ended) else ():
            after = task.after(action)
            if after is not None:
                walk.ended[after[0], after[1]].append(ended)
        for call in exits.calls:
            self._call(walk, task, here, call.start, call.back, call.action, add)
        for edge in exits.more:
            self._second_edge(walk, task, here, edge.byte, edge.target, edge.action, add)

    def _call(self, walk: Walk, task: _Task, nodes: Ints, start: int, back: int, action: Action, add: _Add) -> None:
        after = task.after(action)
        if after is None:
            return
        entered = self._node_set(nodes)
        inner = self._walks.get((entered.number, start, True))
        if inner is None:
            inner = self._walks[entered.number, start, True] = self._walk(entered, start, True)
        walk.reached[after[0], after[1]].extend(_at(inner.reached, 0))
        for (low, high), tokens in inner.specials.items():
            if low <= 0 <= high:
                walk.specials[after[0], after[1]].extend(tokens)
        ended = _merged(_at(inner.ended, 0))
        if back < 0 and len(ended):
            walk.ended[after[0], after[1]].append(ended)
        elif back >= 0:
            add((back, *after), ended)

    def _second_edge(
        self, walk: Walk, task: _Task, nodes: Ints, byte: int, target: int, action: Action, add: _Add
    ) -> None:
        after = task.after(action)
        if after is None:
            return
        first = self.trie.first_child[nodes]
        children = spans(first, self.trie.first_child[nodes + 1] - first)
        chosen = children[self.trie.byte[children] == byte]
        if len(chosen):
            walk.reached[after[0], after[1]].append(chosen)
            add((target, *after), chosen)
