"""JSON strings as items: the pattern's automaton over escaped bytes, the length as a counter.

The counter alone would run into dead ends: after "ab" of ^(ab)+$ with maxLength 3 no further "a" may begin. So each
state of the pattern has a window of counts from which a legal length can still be met, and a code point is begun only
into the window of the state that it leads to. Gaps between those counts matter only where the bounds are closer to each
other than a gap is wide: there the pattern is multiplied with the length instead, up to the usual limit of states.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.items import FREE, UNBOUNDED, Action, Edges, Item, Node
from ramet.constrained.regex import dfa as regular
from ramet.constrained.regex.dfa import Dfa, Row
from ramet.constrained.regex.text import StringContent, to_json_content

Window = tuple[int, int]
"""Least and greatest count; empty if least > greatest."""

_MAX_WINDOW_WORK = 2_000_000
_QUOTE = 0x22


class QuotedString(Item):
    """A JSON string with its quotes; the body of a rule. Position: "open", then a state of the content."""

    def __init__(self, pattern: Dfa, windows: "Windows | None", key: ir.String, content: StringContent) -> None:
        """content  `pattern` escaped; its boundary states have the numbers of the pattern's states"""
        self.content, self.windows, self._string = content, windows, key
        self.productive = not content.dfa.is_empty and (windows is None or windows.is_possible)
        self.universal = _universal(pattern) if windows is None else frozenset()
        """Boundary states from which every plain text goes on: no quotation mark, backslash or control in it."""

    @property
    def key(self) -> Hashable:
        return ("string", self._string)

    def begin(self, following: Node) -> Node:
        return following.space.node(self, "open", following)

    def edges(self, at: Node) -> Edges:
        if at.position == "open":
            return Edges(reads=[(_QUOTE, _QUOTE, at.at(0), FREE)])
        state = at.position
        assert isinstance(state, int)
        reads = []
        for low, high, target in self.content.dfa.rows[state]:
            action = FREE if self.windows is None else self.windows.action(state, target)
            if action.low <= action.high:
                reads.append((low, high, at.at(target), action))
        if state in self.content.dfa.accepting:
            close = FREE if self.windows is None else self.windows.close
            reads.append((_QUOTE, _QUOTE, at.following, close))
        return Edges(reads=reads)


@dataclass(frozen=True)
class Windows:
    """Counts in which each state of the content may be, between code points or inside one."""

    of_state: tuple[Window, ...]
    boundaries: frozenset[int]
    close: Action

    @property
    def is_possible(self) -> bool:
        """Whether any string meets the bounds."""
        low, high = self.of_state[0]
        return low <= 0 <= high and self.close.low <= self.close.high

    def action(self, state: int, target: int) -> Action:
        """What a content byte from `state` to `target` demands; the first byte of a code point counts it."""
        low, high = self.of_state[target]
        if state in self.boundaries:
            return Action(max(0, low - 1), UNBOUNDED if high >= UNBOUNDED else high - 1, 1)
        return FREE if self.of_state[state] == (low, high) else Action(low, high, 0)


_PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF))
"""Code points that a JSON string may hold raw."""


def _universal(pattern: Dfa) -> frozenset[int]:
    """The greatest set of states from which plain text leads only into the set."""
    reached = [_plain_targets(row) for row in pattern.rows]
    found = {state for state, ends in enumerate(reached) if ends is not None}
    while True:
        left = {state for state in found if (ends := reached[state]) is not None and ends <= found}
        if left == found:
            return frozenset(found)
        found = left


def _plain_targets(row: Row) -> frozenset[int] | None:
    """States one plain code point away; None if some plain code point is not allowed."""
    targets: set[int] = set()
    for low, high in _PLAIN:
        inside = [edge for edge in row if edge[0] <= high and edge[1] >= low]
        if sum(min(high, b) - max(low, a) + 1 for a, b, _ in inside) != high - low + 1:
            return None
        targets.update(target for _, _, target in inside)
    return frozenset(targets)


def quoted_string(string: ir.String) -> QuotedString:
    """The item of an `ir.String`."""
    every = string.escapes == "all"
    pattern = regular.any_text() if string.pattern is None else string.pattern
    if string.minimum == 0 and string.maximum is None:
        return QuotedString(pattern, None, string, to_json_content(pattern, all_escapes=every))
    pattern, minimum, maximum = _without_chain(pattern, string.minimum, string.maximum)
    content = to_json_content(pattern, all_escapes=every)
    windows = _windows(pattern, content, minimum, maximum)
    if windows is None:
        pattern = regular.intersection(pattern, regular.length_between(minimum, maximum))
        return QuotedString(pattern, None, string, to_json_content(pattern, all_escapes=every))
    return QuotedString(pattern, windows, string, content)


def normalised_string(string: ir.String) -> ir.String:
    """`^[a-z]{1,200}$` is a chain of two hundred states: as one class with a length it needs one."""
    if string.pattern is None:
        return string
    pattern, minimum, maximum = _without_chain(string.pattern, string.minimum, string.maximum)
    return ir.String(pattern, minimum, maximum, string.escapes)


def _without_chain(pattern: Dfa, minimum: int, maximum: int | None) -> tuple[Dfa, int, int | None]:
    """A pattern that only repeats one class, so many times, becomes the free repetition and bounds."""
    size = len(pattern.rows)
    symbols = [(low, high) for low, high, _ in pattern.rows[0]]
    loops = bool(pattern.rows[-1])
    for state, row in enumerate(pattern.rows):
        target = state if state == size - 1 else state + 1
        wanted = [(low, high, target) for low, high in symbols] if state < size - 1 or loops else []
        if list(row) != wanted:
            return pattern, minimum, maximum
    ends = sorted(pattern.accepting)
    if size < 3 or not ends or ends != list(range(ends[0], size)):
        return pattern, minimum, maximum
    one_class = Dfa((tuple((low, high, 0) for low, high in symbols),), frozenset({0}), pattern.limit)
    top = maximum if loops else size - 1 if maximum is None else min(maximum, size - 1)
    return one_class, max(minimum, ends[0]), top


def _windows(pattern: Dfa, content: StringContent, minimum: int, maximum: int | None) -> Windows | None:
    top = UNBOUNDED if maximum is None else maximum
    remaining = _remaining_lengths(pattern, UNBOUNDED if minimum == 0 else top - minimum)
    if remaining is None:
        return None
    of_boundary = [
        (max(0, minimum - most) if most < UNBOUNDED else 0, top - least if top < UNBOUNDED else UNBOUNDED)
        for least, most in remaining
    ]
    if any(low > high for low, high in of_boundary[:1]):
        return Windows(tuple(of_boundary), content.boundaries, Action(minimum, top, 0))
    inner = _inner_windows(content, of_boundary)
    return None if inner is None else Windows(inner, content.boundaries, Action(minimum, top, 0))


def _remaining_lengths(pattern: Dfa, slack: int) -> list[Window] | None:
    """For each state the least and the greatest length that still leads to acceptance.

    None if for some state more than `slack` lengths in a row between the two do not. The sets "accepts after exactly l
    more" follow one another deterministically; once one repeats, one more round of the cycle shows all gaps.
    """
    size = len(pattern.rows)
    successors = [{target for _, _, target in row} for row in pattern.rows]
    current = frozenset(pattern.accepting)
    first, last = [-1] * size, [-1] * size
    seen: dict[frozenset[int], int] = {}
    cyclic: set[int] = set()
    end: int | None = None
    for length in range(_MAX_WINDOW_WORK // size):
        if end is None and current in seen:
            end = length + length - seen[current]
        if end is not None and (length >= end or not current):
            return [(first[s], UNBOUNDED if s in cyclic else last[s]) for s in range(size)]
        seen.setdefault(current, length)
        for state in current:
            if last[state] >= 0 and length - 1 - last[state] > slack:
                return None
            first[state] = length if first[state] < 0 else first[state]
            last[state] = length
        if end is not None:
            cyclic |= current
        current = frozenset(s for s in range(size) if successors[s] & current)
    return None


def _inner_windows(content: StringContent, of_boundary: list[Window]) -> tuple[Window, ...] | None:
    """Windows of the states inside code points: the union of those they lead to, if it is an interval."""
    size = len(content.dfa.rows)
    found: list[Window | None] = [*of_boundary, *([None] * (size - len(of_boundary)))]

    def window(state: int) -> Window | None:
        if found[state] is None:
            targets = sorted({window(target) or (1, 0) for _, _, target in content.dfa.rows[state]})
            low, high = targets[0]
            for a, b in targets[1:]:
                if a > high + 1:
                    return None
                high = max(high, b)
            found[state] = (low, high)
        return found[state]

    for state in range(len(of_boundary), size):
        if window(state) is None:
            return None
    return tuple(w for w in found if w is not None)
