"""States made of nodes, on demand: a recursive transition network, deterministic in bytes inside a rule.

One machine per vocabulary; all its grammars share states. A state is a set of nodes of one rule. Its row says for each
byte which state follows, or -1; what a row can't say (calls, the end of the rule, special tokens, two different actions
on one byte) is in `Exits`. Nothing here knows tokens.

targets  int32 [S, 256]  next state, -1 none
actions  int16 [S, 256]  action of that edge; 0 is the free one
flags    uint8 [S]       UNMADE: the row is not computed yet; EXITS: see `exits`; ACTS: some action of the row is not 0;
                         PLAIN: every plain text (no quotation mark, backslash, control) can be read, and no exit
                         is met inside it

A configuration is (state, counter, stack, log): stack is None or (return state, counter, stack), log is None or
(event, log). Reading a byte gives the configurations of every reading; the empty tuple is dead.
"""

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ramet.constrained.automaton.items import FREE, Action, Bytes, End, Node, Rule, Space
from ramet.constrained.automaton.strings import QuotedString

UNMADE, EXITS, ACTS, PLAIN = 1, 2, 4, 8

Stack = tuple[int, int, Any] | None
Log = tuple["Event", Any] | None


class Event(NamedTuple):
    """A tagged part begins or ends at a byte of the output."""

    name: str
    kind: str
    """"begin" or "end"."""
    position: int
    """Bytes of the output before it."""


class Configuration(NamedTuple):
    """One reading of the output so far."""

    state: int
    counter: int
    stack: Stack
    log: Log


class CallEdge(NamedTuple):
    """Call the rule that begins in `start`; afterwards go on in `back` (-1: nothing is left to do here)."""

    start: int
    back: int
    action: Action
    tag: str | None


class ByteEdge(NamedTuple):
    """A second edge on a byte whose first one has another action."""

    byte: int
    target: int
    action: Action


@dataclass(frozen=True, slots=True)
class Exits:
    """What a state does beside its row."""

    calls: tuple[CallEdge, ...]
    accepts: tuple[Action, ...]
    specials: tuple[tuple[int, int, Action], ...]
    """(token id, target, action)."""
    more: tuple[ByteEdge, ...]


_NO_NODES: frozenset[Node] = frozenset()
NO_EXITS = Exits((), (), (), ())


class Move(NamedTuple):
    """What one byte does to the top of a configuration."""

    action: Action
    """On the counter of the frame that is on top now."""
    calls: bool
    """Whether frames are pushed; else target is in the same frame."""
    back: int
    """Return state of the present frame, or -1."""
    frames: tuple[tuple[int, int], ...]
    """(return state, counter) of the frames above it."""
    target: int
    counter: int
    tags: tuple[str, ...]
    """Tagged rules entered."""


class Machine:
    """See the module. Lookups are lock-free; what makes new states takes `lock`."""

    def __init__(self) -> None:
        self.space = Space()
        self.lock = threading.RLock()
        self.targets: npt.NDArray[np.int32] = np.full((256, 256), -1, np.int32)
        self.actions: npt.NDArray[np.int16] = np.zeros((256, 256), np.int16)
        self.flags: npt.NDArray[np.uint8] = np.zeros(256, np.uint8)
        self.action_values: list[Action] = [FREE]
        self.action_table: npt.NDArray[np.int32] = np.array([FREE], dtype=np.int32)
        """[A, 3] The same as an array: low, high, add."""
        self._action_ids: dict[Action, int] = {FREE: 0}
        self._nodes: list[frozenset[Node]] = []
        self._ids: dict[frozenset[Node], int] = {}
        self._exits: list[Exits] = []
        self._finals: set[int] = set()
        self._tags: dict[int, str] = {}
        self._moves: dict[int, tuple[Move, ...]] = {}
        self._firsts: dict[int, frozenset[int]] = {}

    @property
    def num_states(self) -> int:
        """States numbered so far."""
        return len(self._nodes)

    # States ----------------------------------------------------------------------------------------------------------

    def start_of(self, rule: Rule) -> int:
        """The state in which a rule begins."""
        if rule.start_state < 0:
            with self.lock:
                rule.start_state = self._state(rule.start.closure)
        return rule.start_state

    def exits(self, state: int) -> Exits:
        """What the state does beside its row, which is computed too."""
        if self.flags[state] & UNMADE:
            self.make(state)
        return self._exits[state]

    def is_final(self, state: int) -> bool:
        """Whether only the end of the rule is left."""
        return state in self._finals

    def tag_of(self, state: int) -> str | None:
        """The tag of the rule that the state belongs to."""
        return self._tags.get(state)

    def make(self, state: int) -> None:
        """Compute the row and the exits of a state."""
        with self.lock:
            if self.flags[state] & UNMADE:
                self._fill(state)

    def make_all(self, states: Iterable[int]) -> None:
        """`make` each."""
        for state in states:
            self.make(int(state))

    def _state(self, nodes: frozenset[Node]) -> int:
        found = self._ids.get(nodes)
        if found is not None:
            return found
        number = self._ids[nodes] = len(self._nodes)
        if number >= len(self.flags):
            self._grow()
        self.flags[number] = UNMADE
        self._exits.append(NO_EXITS)
        self._nodes.append(nodes)
        self._note_end(number, nodes)
        return number

    def _note_end(self, number: int, nodes: frozenset[Node]) -> None:
        if not nodes:
            return
        node = next(iter(nodes))
        if len(nodes) == 1 and isinstance(node.item, End):
            self._finals.add(number)
        while node.next is not None:
            node = node.next
        if isinstance(node.item, End) and node.item.tag is not None:
            self._tags[number] = node.item.tag

    def _grow(self) -> None:
        size = len(self.flags)
        self.targets = np.concatenate([self.targets, np.full((size, 256), -1, np.int32)])
        self.actions = np.concatenate([self.actions, np.zeros((size, 256), np.int16)])
        self.flags = np.concatenate([self.flags, np.zeros(size, np.uint8)])

    # Rows ------------------------------------------------------------------------------------------------------------

    def _fill(self, state: int) -> None:
        nodes = self._nodes[state]
        calls: dict[tuple[Rule, Action], set[Node]] = defaultdict(set)
        specials: dict[tuple[int, Action], set[Node]] = defaultdict(set)
        reads: dict[Action, list[tuple[int, int, Node]]] = defaultdict(list)
        accepts: dict[Action, None] = {}
        for node in nodes:
            edges = node.edges
            for low, high, target, action in edges.reads:
                reads[action].append((low, high, target))
            for rule, target, action in edges.calls:
                calls[rule, action].update(target.closure)
            for token, target, action in edges.specials:
                specials[token, action].update(target.closure)
            accepts.update(dict.fromkeys(edges.accepts))
        more = self._fill_row(state, reads)
        exits = Exits(
            tuple(edge for (rule, action), to in calls.items() if (edge := self._call(rule, action, to)) is not None),
            (FREE,) if FREE in accepts else tuple(accepts),
            tuple((token, self._state(frozenset(to)), action) for (token, action), to in specials.items() if to),
            more,
        )
        self._exits[state] = exits
        has_exits = bool(exits.calls or exits.accepts or exits.specials or exits.more)
        acts = reads.keys() != {FREE} and bool(self.actions[state].any())
        plain = not has_exits and not acts and _reads_plain_text(nodes)
        self.flags[state] = (EXITS if has_exits else 0) | (ACTS if acts else 0) | (PLAIN if plain else 0)

    def _call(self, rule: Rule, action: Action, to: set[Node]) -> CallEdge | None:
        if not to or action.low > action.high:
            return None
        back = self._state(frozenset(to))
        nothing_left = back in self._finals and back not in self._tags
        return CallEdge(self.start_of(rule), -1 if nothing_left else back, action, rule.tag)

    def _fill_row(self, state: int, reads: dict[Action, list[tuple[int, int, Node]]]) -> tuple[ByteEdge, ...]:
        more: list[ByteEdge] = []
        is_empty = True
        for action, edges in reads.items():
            if action.low > action.high:
                continue
            number = self._action(action)
            for low, high, target in list(self._joined(edges)):  # may grow the arrays, so before they are taken
                row = self.targets[state, low : high + 1]
                if is_empty or (row < 0).all():
                    row[:] = target
                    if number:
                        self.actions[state, low : high + 1] = number
                    continue
                more.extend(ByteEdge(byte, target, action) for byte in range(low, high + 1))
            is_empty = False
        return tuple(more)

    def _joined(self, edges: list[tuple[int, int, Node]]) -> Iterable[tuple[int, int, int]]:
        """Disjoint ranges with the state that they lead to."""
        if len(edges) == 1:
            low, high, node = edges[0]
            state = self._state_of(node)
            if state >= 0:
                yield low, high, state
            return
        spans = sorted((low, high, number) for number, (low, high, _) in enumerate(edges))
        cuts = sorted({c for low, high, _ in edges for c in (low, high + 1)})
        active: list[tuple[int, int]] = []
        states: dict[tuple[int, ...], int] = {}
        position = 0
        for low, after in itertools.pairwise(cuts):
            active = [pair for pair in active if pair[0] >= low]
            while position < len(spans) and spans[position][0] == low:
                active.append(spans[position][1:])
                position += 1
            if len(active) == 1:
                state = self._state_of(edges[active[0][1]][2])
            else:
                key = tuple(sorted(number for _, number in active))
                if key not in states:
                    states[key] = self._union(edges[number][2] for number in key)
                state = states[key]
            if state >= 0:
                yield low, after - 1, state

    def _state_of(self, node: Node) -> int:
        """The state of one node, or -1 if it leads nowhere."""
        if node.state is None:
            node.state = self._state(node.closure) if node.closure else -1
        return node.state

    def _union(self, targets: Iterable[Node]) -> int:
        """The state of several nodes at once, or -1 if none of them leads anywhere."""
        nodes = _NO_NODES.union(*(target.closure for target in dict.fromkeys(targets)))
        return self._state(nodes) if nodes else -1

    def _action(self, action: Action) -> int:
        number = self._action_ids.get(action)
        if number is None:
            number = self._action_ids[action] = len(self.action_values)
            self.action_values.append(action)
            self.action_table = np.array(self.action_values, dtype=np.int32)
        return number

    # Moves -----------------------------------------------------------------------------------------------------------

    def moves(self, state: int, byte: int) -> tuple[Move, ...]:
        """Every way to read a byte from a state, entering rules on the way."""
        key = state << 8 | byte
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = tuple(self._make_moves(state, byte))
        return found

    def _make_moves(self, state: int, byte: int) -> Iterable[Move]:
        exits = self.exits(state)
        target = int(self.targets[state, byte])
        if target >= 0:
            action = self.action_values[self.actions[state, byte]]
            yield Move(action, False, -1, (), target, 0, ())
        for edge in exits.more:
            if edge.byte == byte:
                yield Move(edge.action, False, -1, (), edge.target, 0, ())
        for call in exits.calls:
            yield from _entered(call, self.moves(call.start, byte))

    def special_moves(self, state: int, token: int) -> Iterable[Move]:
        """The same for a special token; rare, so not remembered."""
        exits = self.exits(state)
        for special, target, action in exits.specials:
            if special == token:
                yield Move(action, False, -1, (), target, 0, ())
        for call in exits.calls:
            yield from _entered(call, self.special_moves(call.start, token))

    def first_bytes(self, state: int) -> frozenset[int]:
        """Bytes that some move from the state reads, whatever the counter; -1 stands for special tokens."""
        found = self._firsts.get(state)
        if found is None:
            exits = self.exits(state)
            row = {int(byte) for byte in np.flatnonzero(self.targets[state] >= 0)}
            row.update(edge.byte for edge in exits.more)
            row.update([-1] if exits.specials else [])
            for call in exits.calls:
                row |= self.first_bytes(call.start)
            found = self._firsts[state] = frozenset(row)
        return found

    def next_bytes(self, configurations: Iterable[Configuration], position: int) -> set[int]:
        """Bytes that may come next, and perhaps some that counters exclude."""
        found: set[int] = set()
        for configuration in configurations:
            above: Configuration | None = configuration
            while above is not None:
                found |= self.first_bytes(above.state)
                above = self._popped(above, position)
        return found

    # Configurations --------------------------------------------------------------------------------------------------

    def read(self, configurations: Sequence[Configuration], byte: int, position: int) -> tuple[Configuration, ...]:
        """After one more byte, which is number `position` of the output."""
        if len(configurations) == 1:
            found = self._read_one(configurations[0], byte, position)
        else:
            found = [c for configuration in configurations for c in self._read_one(configuration, byte, position)]
        return tuple(found) if len(found) < 2 else _distinct(found)

    def _read_one(self, configuration: Configuration, byte: int, position: int) -> list[Configuration]:
        found: list[Configuration] = []
        above: Configuration | None = configuration
        while above is not None:
            found += self._moved_all(above, self.moves(above.state, byte), position)
            above = self._popped(above, position)
        return found

    def _moved_all(self, above: Configuration, moves: Iterable[Move], position: int) -> list[Configuration]:
        counter = above.counter
        return [self._moved(above, m, position) for m in moves if m.action.low <= counter <= m.action.high]

    def read_special(
        self, configurations: Sequence[Configuration], token: int, position: int
    ) -> tuple[Configuration, ...]:
        """After a special token."""
        found: list[Configuration] = []
        for configuration in configurations:
            above: Configuration | None = configuration
            while above is not None:
                found += self._moved_all(above, self.special_moves(above.state, token), position)
                above = self._popped(above, position)
        return _distinct(found)

    def _moved(self, above: Configuration, move: Move, position: int) -> Configuration:
        stack, log = above.stack, above.log
        counter = above.counter + move.action.add
        if move.calls:
            if move.back >= 0:
                stack = (move.back, counter, stack)
            for frame in move.frames:
                stack = (*frame, stack)
            counter = move.counter
            for entered in move.tags:
                log = (Event(entered, "begin", position), log)
        state = move.target
        while state in self._finals:  # nothing is left in this rule: leave it at once
            tag = self._tags.get(state)
            if tag is not None:
                log = (Event(tag, "end", position + 1), log)
            if stack is None:
                if tag is not None:
                    state = self._ended()
                break
            state, counter, stack = stack
        return Configuration(state, counter, stack, log)

    def _ended(self) -> int:
        """The state in which all is read and reported."""
        return self._state(self.space.end.closure)

    def _popped(self, above: Configuration, position: int) -> Configuration | None:
        """After the end of the present rule, if it may end here."""
        exits = self.exits(above.state)
        if above.stack is None or not any(low <= above.counter <= high for low, high, _ in exits.accepts):
            return None
        tag, log = self._tags.get(above.state), above.log
        if tag is not None:
            log = (Event(tag, "end", position), log)
        state, counter, stack = above.stack
        return Configuration(state, counter, stack, log)

    def is_finished(self, configurations: Iterable[Configuration]) -> bool:
        """Whether nothing may follow."""
        return all(c.stack is None and c.state in self._finals for c in configurations)

    def accepting(self, configurations: Iterable[Configuration], position: int) -> Configuration | None:
        """A configuration in which the output may end, with every rule left; None: it may not."""
        for configuration in configurations:
            here: Configuration | None = configuration
            while here is not None:
                below = self._popped(here, position)
                if here.stack is None:
                    break
                here = below
            if here is not None and any(low <= here.counter <= high for low, high, _ in self.exits(here.state).accepts):
                tag = self._tags.get(here.state)
                return here if tag is None else here._replace(log=(Event(tag, "end", position), here.log))
        return None


def _reads_plain_text(nodes: frozenset[Node]) -> bool:
    """Inside strings: one of them takes any plain text, and a quotation mark must come before any of them can end."""
    found = False
    for node in nodes:
        if isinstance(node.item, QuotedString) and node.item.windows is None:
            found |= node.position in node.item.universal
        elif not (isinstance(node.item, Bytes) and node.item.data.find(b'"', _offset(node)) >= 0):
            return False
    return found


def _offset(node: Node) -> int:
    assert isinstance(node.position, int), "a literal's position is an offset"
    return node.position


def _entered(call: CallEdge, moves: Iterable[Move]) -> Iterable[Move]:
    """The moves of a callee as moves of the caller: the callee's frame is fresh, so its counter is known."""
    tags = () if call.tag is None else (call.tag,)
    for move in moves:
        if move.action.low > 0 or move.action.high < 0:
            continue
        counter = move.action.add
        if not move.calls:
            yield Move(call.action, True, call.back, (), move.target, counter, tags)
            continue
        frames = ((move.back, counter), *move.frames) if move.back >= 0 else move.frames
        yield Move(call.action, True, call.back, frames, move.target, move.counter, (*tags, *move.tags))


def _distinct(found: list[Configuration]) -> tuple[Configuration, ...]:
    """Readings that differ only in their log are one: the first stays."""
    seen: dict[tuple[int, int, Stack], Configuration] = {}
    for configuration in found:
        seen.setdefault(configuration[:3], configuration)
    return tuple(seen.values())
