"""The short way out: a legal completion of an output, to see whether it still fits into the tokens that are left.

Distances to the end of each rule ignore counters, so they are guides and not promises; the completion itself is read
by the machine byte by byte, so it is legal.
"""

import heapq
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ramet.constrained.automaton.items import UNBOUNDED
from ramet.constrained.automaton.machine import Configuration, Machine
from ramet.constrained.tables.arena import Reach, TooLarge

if TYPE_CHECKING:
    from ramet.constrained.state import GrammarState

MAX_BYTES = 4096
"""Completions longer than that are not looked for."""

MAX_SEARCHED = 300
"""Configurations that the exact search goes on from: each reads up to a hundred bytes."""

Distances = Mapping[int, int]
"""State -> least number of bytes to the end of its rule."""


def distances(machine: Machine, start: int) -> Distances | None:
    """Of all states that a grammar can reach; None for a grammar with too many."""
    try:
        with machine.lock:
            reach = Reach(machine, start)
    except TooLarge:
        return None
    found = dict.fromkeys(reach.states, UNBOUNDED)
    inside = {state: _edges(machine, state) for state in found}
    changed = True
    while changed:  # calls refer to each other: relax until nothing shrinks
        changed = False
        for state in reversed(list(found)):
            best = min((_cost(found, edge) for edge in inside[state]), default=UNBOUNDED)
            if machine.exits(state).accepts:
                best = 0
            if best < found[state]:
                found[state], changed = best, True
    return found


_Edge = tuple[int, int, int]
"""(bytes, state called or -1, state afterwards or -1 for the end of the rule)."""


def _edges(machine: Machine, state: int) -> list[_Edge]:
    exits, row = machine.exits(state), machine.targets[state]
    found: list[_Edge] = [(1, -1, int(target)) for target in np.unique(row[row >= 0])]
    found += [(1, -1, edge.target) for edge in exits.more]
    found += [(1, -1, target) for _, target, _ in exits.specials]
    return found + [(0, call.start, call.back) for call in exits.calls]


def _cost(found: Distances, edge: _Edge) -> int:
    num_bytes, called, then = edge
    return min(UNBOUNDED, num_bytes + (found[called] if called >= 0 else 0) + (found[then] if then >= 0 else 0))


def closing_bytes(state: "GrammarState", known: Distances) -> bytes | None:
    """Bytes after which the output may end: the fewest, or what a greedy walk finds where the search is too wide."""
    machine = state.grammar.machine
    assert isinstance(machine, Machine), "distances are those of a machine's states"
    return _fewest(machine, state, known) or _greedy(machine, state, known)


def _fewest(machine: Machine, state: "GrammarState", known: Distances) -> bytes | None:
    """A* over configurations: distances never overestimate."""
    serial = itertools.count()  # orders equals by age, so that configurations are not compared
    first = state.configurations
    open_: list[tuple[int, int, bytes, tuple[Configuration, ...]]] = [(0, next(serial), b"", first)]
    seen = {first}
    for _ in range(MAX_SEARCHED):
        if not open_:
            return None
        _, _, read, configurations = heapq.heappop(open_)
        position = state.num_bytes + len(read)
        if machine.accepting(configurations, position) is not None:
            return read
        for byte in _printable_first(machine.next_bytes(configurations, position)):
            after = machine.read(configurations, byte, position)
            if after and after not in seen and len(open_) < 8 * MAX_SEARCHED:
                seen.add(after)
                least = len(read) + 1 + min(_distance(c, known) for c in after)
                heapq.heappush(open_, (least, next(serial), read + bytes([byte]), after))
    return None


def _printable_first(following: set[int]) -> list[int]:
    return sorted((byte for byte in following if byte >= 0), key=lambda byte: (not 0x20 <= byte < 0x7F, byte))


def _greedy(machine: Machine, state: "GrammarState", known: Distances) -> bytes | None:
    configurations, position = state.configurations, state.num_bytes
    found = bytearray()
    tried: dict[tuple[int, ...], list[int]] = {}
    while len(found) < MAX_BYTES and configurations:
        if machine.accepting(configurations, position) is not None:
            return bytes(found)
        step = _best_step(machine, configurations, position, known, tried)
        if step is None:
            return None
        byte, configurations = step
        found.append(byte)
        position += 1
    return None


def _best_step(
    machine: Machine,
    configurations: tuple[Configuration, ...],
    position: int,
    known: Distances,
    tried: dict[tuple[int, ...], list[int]],
) -> tuple[int, tuple[Configuration, ...]] | None:
    """The byte that leads nearest to the end. Where these states were met before, only their counters differ: what
    they excluded then is tried again, and the best byte of then."""
    best: tuple[int, int] | None = None
    after_best: tuple[Configuration, ...] = ()
    states = tuple(c.state for c in configurations)
    excluded: list[int] = []
    for byte in tried.get(states) or _printable_first(machine.next_bytes(configurations, position)):
        after = machine.read(configurations, byte, position)
        rank = (min((_distance(c, known) for c in after), default=UNBOUNDED), byte)
        if not after:
            excluded.append(byte)
        elif best is None or rank[0] < best[0]:
            best, after_best = rank, after
    if best is None:
        return None
    tried[states] = [*excluded, best[1]]
    return best[1], after_best


def _distance(configuration: Configuration, known: Distances) -> int:
    total, stack = known.get(configuration.state, UNBOUNDED), configuration.stack
    while stack is not None:
        total, stack = total + known.get(stack[0], UNBOUNDED), stack[2]
    return min(total, UNBOUNDED)


def num_tokens(state: "GrammarState", data: bytes) -> int:
    """Tokens that spell these bytes: the tokenizer's own count where it has one, else the longest match each time."""
    vocabulary = state.grammar.vocabulary
    try:
        if vocabulary.encode is not None:
            return len(vocabulary.encode(data.decode()))
    except UnicodeDecodeError:
        pass
    count = position = 0
    while position < len(data):
        window = data[position : position + vocabulary.longest]
        fitting = (n for n in range(len(window), 0, -1) if window[:n] in vocabulary.id_of_bytes)
        position += next(fitting, 1)
        count += 1
    return count
