"""Free keys told apart by a small hash, so that an object can count different ones.

`minProperties` counts properties of the value, and a key that is written twice is one. An automaton can't remember the
keys that it read, but it can remember a few bits of each. Keys with different hashes are different; keys with equal
ones count once, which narrows what is generated and never widens it. The hash is of the decoded text: a key that is
spelt with escapes has the hash of the plain one.
"""

from collections import deque
from collections.abc import Hashable
from functools import cache

from ramet.constrained.automaton.items import FREE, Edges, Item, Node
from ramet.constrained.regex import dfa as regular
from ramet.constrained.regex.dfa import MAX_CODE_POINT, MAX_STATES, SURROGATES, Dfa, Edge, TooManyStates
from ramet.constrained.regex.text import to_json_content

_ASCII = 128
_QUOTE = 0x22
_FACTOR = 43
"""Odd, and of those the one that tells most pairs of usual keys apart (30 of 12,000 real objects collide)."""


class Owner(Item):
    """The object of a key."""

    def open_parts(self, at: Node, free: int) -> int:
        """Bits of the parts from which a key of free member number `free` may come at the object's node `at`."""
        raise NotImplementedError

    def after_key(self, at: Node, free: int, part: int) -> Node:
        """The node behind the key: colon, value and the rest of the object."""
        raise NotImplementedError


def next_hash(value: int, code_point: int, number: int) -> int:
    """One code point more; code points beyond ASCII are all alike."""
    return (_FACTOR * value + (code_point if code_point < _ASCII else 0) + 1) % number


def hash_of(text: str, number: int) -> int:
    """Which part a key is in. `number`: of parts, a power of two."""
    value = 0
    for character in text:
        value = next_hash(value, ord(character), number)
    return value


@cache
def languages_of_parts(keys: Dfa, number: int) -> tuple[Dfa, ...]:
    """The keys of each hash, as languages."""
    if number == 1:
        return (keys,)
    rows = [
        regular.joined(
            (low, high, next_hash(value, low, number))
            for first, last in ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, MAX_CODE_POINT))
            for low, high in _alike(first, last)
        )
        for value in range(number)
    ]
    hashes = (regular.trimmed(Dfa(tuple(rows), frozenset({value}))) for value in range(number))
    return tuple(regular.intersection(keys, each) for each in hashes)


class PartedKey(Item):
    """A key. Position: (number of the free member, "open" or a state of the content); the node that follows is the
    object's own, for the text says where it goes on."""

    def __init__(self, keys: Dfa | None, number: int) -> None:
        self.keys, self.number = keys, number
        automaton, self.part_of = _with_hashes(regular.any_text() if keys is None else keys, number)
        self._rows = to_json_content(automaton).dfa.rows
        self._before = _reversed(self._rows)
        self._live: dict[int, frozenset[int]] = {}
        self.parts = sum(1 << part for part in set(self.part_of.values()))
        """Bits of those that are not empty."""
        self.productive = bool(self.parts)

    @property
    def key(self) -> Hashable:
        return ("parted", self.keys, self.number)

    def edges(self, at: Node) -> Edges:
        position, owner = at.position, at.following.item
        assert isinstance(position, tuple)
        assert isinstance(owner, Owner), "a parted key stands before its object's own node"
        free, state = position
        if state == "open":
            return Edges(reads=[(_QUOTE, _QUOTE, at.at((free, 0)), FREE)])
        open_parts = owner.open_parts(at.following, free)
        live = self._live_states(open_parts)
        reads = [(low, high, at.at((free, to)), FREE) for low, high, to in self._rows[state] if to in live]
        part = self.part_of.get(state)
        if part is not None and open_parts >> part & 1:
            reads.append((_QUOTE, _QUOTE, owner.after_key(at.following, free, part), FREE))
        return Edges(reads=reads)

    def _live_states(self, open_parts: int) -> frozenset[int]:
        """States from which a key of an open part can still be reached."""
        if open_parts not in self._live:
            found = {state for state, part in self.part_of.items() if open_parts >> part & 1}
            waiting = list(found)
            while waiting:
                new = self._before[waiting.pop()] - found
                found |= new
                waiting.extend(new)
            self._live[open_parts] = frozenset(found)
        return self._live[open_parts]


def _reversed(rows: tuple[regular.Row, ...]) -> list[set[int]]:
    before: list[set[int]] = [set() for _ in rows]
    for state, row in enumerate(rows):
        for _, _, target in row:
            before[target].add(state)
    return before


@cache
def _with_hashes(keys: Dfa, number: int) -> tuple[Dfa, dict[int, int]]:
    """The product of keys and hashes, and the part of each accepting state. Not trimmed: `_live_states` does that."""
    numbers: dict[tuple[int, int], int] = {(0, 0): 0}
    rows: list[regular.Row] = []
    waiting = deque(numbers)
    while waiting:
        state, value = waiting.popleft()
        edges: list[Edge] = []
        for low, high, target in keys.rows[state]:
            for first, last in _alike(low, high):
                after = (target, next_hash(value, first, number))
                if after not in numbers:
                    numbers[after] = len(numbers)
                    waiting.append(after)
                edges.append((first, last, numbers[after]))
        rows.append(regular.joined(edges))
        if len(numbers) > MAX_STATES:
            raise TooManyStates(MAX_STATES)
    part_of = {place: value for (state, value), place in numbers.items() if state in keys.accepting}
    return Dfa(tuple(rows), frozenset(part_of)), part_of


def _alike(low: int, high: int) -> list[tuple[int, int]]:
    """Ranges of code points that the hash takes for one."""
    found = [(point, point) for point in range(low, min(high, _ASCII - 1) + 1)]
    return found if high < _ASCII else [*found, (max(low, _ASCII), high)]
