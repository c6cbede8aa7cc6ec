"""Which tokens fit in a state: a walk of the vocabulary's trie beside the machine (`descend` does the inner loop).

A walk starts with some trie nodes in one state and stays in one frame. It yields, for every window of the frame's
counter, the tokens that end on the way and the nodes at which the frame may end (the rest of the token is read by the
frame below, in a walk of its own). A call is a walk in the callee, whose counter is known, so its result is a plain
mask. Every walk is remembered by (nodes, state): what grammars share is walked once.
"""

import bisect
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ramet.constrained.automaton.items import UNBOUNDED, Action
from ramet.constrained.automaton.machine import PLAIN, ByteEdge, CallEdge, Machine
from ramet.constrained.tables.descend import ADD, HIGH, LOW, NODE, STATE, Descent, best_descent, places
from ramet.constrained.tables.trie import Ints, Trie
from ramet.constrained.vocabulary import Vocabulary, Words

Window = tuple[int, int]
"""Values of the counter, both ends included, in which something holds."""

EVERY: Window = (0, UNBOUNDED)


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

    words: dict[Window, Words] = field(default_factory=dict)
    """Tokens that fit."""
    counted: list[Ints] = field(default_factory=list)
    """Places of more tokens, each with a window of its own."""
    ended: dict[Window, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    """Nodes at which the frame may end."""
    answers: list[tuple[int, int, Answer]] = field(default_factory=list)
    """Disjoint ranges of the counter with one answer each, in order."""

    def known(self, counter: int) -> Answer | None:
        """The answer for this counter, if one was made already."""
        answers = self.answers
        if len(answers) == 1:
            low, high, answer = answers[0]
            return answer if low <= counter <= high else None
        index = bisect.bisect_right(answers, counter, key=_first) - 1
        if index < 0 or answers[index][1] < counter:
            return None
        return answers[index][2]

    def range_around(self, counter: int) -> Window:
        """The counters for which the answer is the same."""
        low, high = EVERY
        for start, end in itertools.chain(self.words, self.ended):
            for cut in (start, end + 1):
                if cut <= counter:
                    low = max(low, cut)
                else:
                    high = min(high, cut - 1)
        for rows in self.counted:
            cuts = np.concatenate([rows[:, LOW], rows[:, HIGH] + 1])
            before = cuts <= counter
            low = max(low, int(cuts.max(where=before, initial=low)))
            high = min(high, int(cuts.min(where=~before, initial=high + 1)) - 1)
        return low, high


def _first(entry: tuple[int, int, Answer]) -> int:
    return entry[0]


@dataclass(frozen=True, slots=True)
class _Task:
    """Nodes that stand in one state, with what happened to the counter since the walk began."""

    state: int
    low: int
    high: int
    add: int

    def after(self, action: Action, state: int) -> "_Task | None":
        """In `state`, once the action is done too; None: it can't be."""
        done = Action(self.low, self.high, self.add).then(action)
        return _Task(state, *done) if done.low <= done.high else None

    @property
    def window(self) -> Window:
        return self.low, self.high


class _Running:
    """A walk in progress: what it found, and what is still to do."""

    def __init__(self, num_words: int) -> None:
        self.walk = Walk()
        self.waiting: dict[_Task, list[Ints]] = {}
        self._num_words = num_words

    def later(self, task: _Task | None, nodes: Ints) -> None:
        """Go on from these nodes."""
        if task is not None and len(nodes):
            self.waiting.setdefault(task, []).append(nodes)

    def words(self, window: Window) -> Words:
        """The mask of a window, to be written to."""
        found = self.walk.words.get(window)
        if found is None:
            found = self.walk.words[window] = np.zeros(self._num_words, dtype=np.int32)
        return found


class Explorer:
    """Walks and answers of one machine over one vocabulary, remembered."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        self.machine, self.vocabulary = machine, vocabulary
        self.trie: Trie = vocabulary.trie
        self.descent: Descent = best_descent(machine, self.trie)
        self._sets: dict[bytes, NodeSet] = {}
        self._walks: dict[tuple[int, int, bool], Walk] = {}
        self._masks: dict[bytes, Words] = {}
        self.num_bytes = 0
        """Bytes of the answers kept."""
        self.root = self._node_set(np.zeros(1, dtype=np.int32))

    def answer(self, start: NodeSet, state: int, counter: int, *, fresh: bool = False) -> Answer:
        """What a frame in `state` with this counter does to tokens that stand at `start`.

        fresh: the frame was entered just now, so it can't end before it has read something.
        """
        walk = self._walks.get((start.number, state, fresh))
        found = None if walk is None else walk.known(counter)
        if found is None:
            with self.machine.lock:
                walk = self._walk(start, state, fresh)
                found = walk.known(counter) or self._make_answer(walk, counter)
        return found

    def range_of(self, start: NodeSet, state: int, counter: int) -> Window:
        """The counters that have the same answer as this one."""
        self.answer(start, state, counter)
        return self._walks[start.number, state, False].range_around(counter)

    def nodes(self, nodes: Ints) -> NodeSet:
        """The set of these nodes, for `answer`."""
        with self.machine.lock:
            return self._node_set(nodes)

    def statistics(self) -> dict[str, int]:
        """Sizes, for logs and tests."""
        return {"walks": len(self._walks), "node_sets": len(self._sets), "num_bytes": self.num_bytes}

    # Answers ---------------------------------------------------------------------------------------------------------

    def _make_answer(self, walk: Walk, counter: int) -> Answer:
        window = walk.range_around(counter)
        answer = Answer(self._allowed(walk, counter), self._rest(walk, counter))
        bisect.insort(walk.answers, (*window, answer), key=_first)
        return answer

    def _allowed(self, walk: Walk, counter: int) -> Words | None:
        masks = [words for (low, high), words in walk.words.items() if low <= counter <= high]
        if len(masks) == 1 and not walk.counted:
            return masks[0]
        if not masks and not walk.counted:
            return None
        made = np.zeros(self.vocabulary.num_words, dtype=np.int32)
        for words in masks:
            np.bitwise_or(made, words, out=made)
        for rows in walk.counted:
            self.descent.mark(rows, counter, made)
        return self._shared(made) if made.any() else None

    def _rest(self, walk: Walk, counter: int) -> NodeSet | None:
        parts = [n for (low, high), nodes in walk.ended.items() if low <= counter <= high for n in nodes]
        return self._node_set(np.unique(np.concatenate(parts))) if parts else None

    def _node_set(self, nodes: Ints) -> NodeSet:
        key = nodes.tobytes()
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = NodeSet(np.ascontiguousarray(nodes), len(self._sets))
            self.num_bytes += nodes.nbytes
        return found

    # Walking ---------------------------------------------------------------------------------------------------------

    def _walk(self, start: NodeSet, state: int, fresh: bool) -> Walk:
        """The walk from these nodes, remembered."""
        key = (start.number, state, fresh)
        found = self._walks.get(key)
        if found is None:
            running = _Running(self.vocabulary.num_words)
            self._descend(running, _Task(state, *EVERY, 0), start.nodes, fresh)
            while running.waiting:
                task = next(iter(running.waiting))
                self._descend(running, task, np.unique(np.concatenate(running.waiting.pop(task))), False)
            found = self._walks[key] = running.walk
            found.words = {window: self._shared(words) for window, words in found.words.items() if words.any()}
            self.num_bytes += sum(rows.nbytes for rows in found.counted)
        return found

    def _shared(self, words: Words) -> Words:
        """Equal masks are one array: many states allow the same tokens."""
        key = hashlib.blake2b(words.data, digest_size=16).digest()
        if key not in self._masks:
            self._masks[key] = words
            self.num_bytes += words.nbytes
        return self._masks[key]

    def _descend(self, running: _Running, task: _Task, nodes: Ints, fresh: bool) -> None:
        """Go down to the leaves; then leave the states that have exits."""
        nodes = nodes[self.trie.has_children(nodes)]
        starts = places(nodes, task.state, task.low, task.high, task.add)
        words = running.words(task.window)
        plain = len(nodes) == 1 and nodes[0] == 0 and self._reads_plain_text(task.state)
        if plain:
            np.bitwise_or(words, self._plain_words, out=words)
        found = self.descent(starts, task.low, task.high, words, plain=plain)
        if len(found.counted):
            running.walk.counted.append(found.counted)
        for here, at in _grouped(found.exits):
            ended = at
            if fresh and here.state == task.state and here.window == task.window:
                ended = _without_one(at, nodes)  # where it has read nothing yet
            self._leave(running, here, at, ended)

    def _reads_plain_text(self, state: int) -> bool:
        self.machine.make(state)
        return bool(self.machine.flags[state] & PLAIN)

    @cached_property
    def _plain_words(self) -> Words:
        return self.vocabulary.pack(self.trie.plain_tokens)

    def _leave(self, running: _Running, task: _Task, nodes: Ints, ended: Ints) -> None:
        """Calls, ends, special tokens and second edges of one state, for the nodes that stand in it."""
        exits = self.machine.exits(task.state)
        for action in exits.accepts if len(ended) else ():
            after = task.after(action, task.state)
            if after is not None:
                running.walk.ended[after.window].append(ended)
        for call in exits.calls:
            self._call(running, task, nodes, call)
        for edge in exits.more:
            self._second_edge(running, task, nodes, edge)
        for token, _, action in exits.specials:
            after = task.after(action, task.state)
            if after is not None and (nodes == 0).any():
                words = running.words(after.window)
                words.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))

    def _call(self, running: _Running, task: _Task, nodes: Ints, call: CallEdge) -> None:
        after = task.after(call.action, call.back)
        if after is None:
            return
        inner = self.answer(self._node_set(np.unique(nodes)), call.start, 0, fresh=True)
        if inner.words is not None:
            words = running.words(after.window)
            np.bitwise_or(words, inner.words, out=words)
        if inner.rest is None:
            return
        if call.back < 0:
            running.walk.ended[after.window].append(inner.rest.nodes)
        else:
            running.later(after, inner.rest.nodes)

    def _second_edge(self, running: _Running, task: _Task, nodes: Ints, edge: ByteEdge) -> None:
        after = task.after(edge.action, edge.target)
        children, _ = self.trie.children_of(nodes)
        chosen = children[self.trie.byte[children] == edge.byte]
        if after is not None and len(chosen):
            running.walk.counted.append(places(chosen, edge.target, after.low, after.high, after.add))
            running.later(after, chosen)


def _grouped(exits: Ints) -> Iterator[tuple[_Task, Ints]]:
    """The nodes of each (state, window, growth)."""
    if not len(exits):
        return
    order = np.lexsort(exits[:, STATE:].T) if len(exits) > 1 else np.zeros(1, dtype=np.int64)
    rows = exits[order]
    cuts = np.flatnonzero((rows[1:, STATE:] != rows[:-1, STATE:]).any(axis=1)) + 1
    for start, end in itertools.pairwise([0, *cuts.tolist(), len(rows)]):
        first = rows[start]
        task = _Task(int(first[STATE]), int(first[LOW]), int(first[HIGH]), int(first[ADD]))
        yield task, rows[start:end, NODE]


def _without_one(here: Ints, start: Ints) -> Ints:
    """`here` less one occurrence of each start node: what is left was reached by reading."""
    values, counts = np.unique(here, return_counts=True)
    return values[counts > np.isin(values, start)]
