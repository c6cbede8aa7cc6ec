"""One descent: from (node, state) pairs down the trie along free edges of the machine, to the leaves.

Two implementations of one contract, equal as sets: `NativeDescent` (C++, depth first) and `NumpyDescent` (level by
level). Neither knows calls or counters; both say where a state has exits or an edge has an action, and go no further
over such an edge. States that are not made yet are made on the way.
"""

import ctypes
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ramet.constrained.automaton.machine import ACTS, EXITS, UNMADE, Machine
from ramet.constrained.tables.native import load_library
from ramet.constrained.tables.trie import Ints, Trie, spans

_NONE: Ints = np.zeros(0, dtype=np.int32)


class Descended(NamedTuple):
    """What a descent met. All int32, in no order."""

    reached: Ints
    """Nodes below the start."""
    exit_nodes: Ints
    """Nodes with children, the start too, in a state with exits..."""
    exit_states: Ints
    """...and that state."""
    act_nodes: Ints
    """Nodes behind an edge with an action,"""
    act_targets: Ints
    """the state there,"""
    act_numbers: Ints
    """and the action."""


class Descent(Protocol):
    """The contract."""

    def __call__(self, nodes: Ints, states: Ints) -> Descended: ...

    def mark(self, nodes: Ints, words: Ints) -> None:
        """Set the bits of all ids that end in these nodes; words: int32 [ceil(V / 32)]."""


def best_descent(machine: Machine, trie: Trie) -> Descent:
    """The native one where it can be had."""
    library = load_library()
    return NumpyDescent(machine, trie) if library is None else NativeDescent(machine, trie, library)


class NumpyDescent:
    """Level by level: twenty array operations a level, so long thin tries are slow."""

    def __init__(self, machine: Machine, trie: Trie) -> None:
        self.machine, self.trie = machine, trie

    def __call__(self, nodes: Ints, states: Ints) -> Descended:
        found: list[list[Ints]] = [[] for _ in Descended._fields]
        reached, exit_nodes, exit_states, act_nodes, act_targets, act_numbers = found
        while len(nodes):
            flags = self._made_flags(states)
            leaving = (flags & EXITS) != 0
            exit_nodes.append(nodes[leaving])
            exit_states.append(states[leaving])
            first = self.trie.first_child[nodes]
            counts = self.trie.first_child[nodes + 1] - first
            children = spans(first, counts)
            sources, symbols = np.repeat(states, counts), self.trie.byte[children]
            states = self.machine.targets[sources, symbols]
            free = states >= 0
            if (flags & ACTS).any():
                numbers = self.machine.actions[sources, symbols]
                acting = free & (numbers != 0)
                act_nodes.append(children[acting])
                act_targets.append(states[acting])
                act_numbers.append(numbers[acting].astype(np.int32))
                free &= numbers == 0
            nodes, states = children[free], states[free]
            reached.append(nodes)
            inner = self.trie.first_child[nodes + 1] > self.trie.first_child[nodes]
            nodes, states = nodes[inner], states[inner]
        return Descended(*(np.concatenate(part) if part else _NONE for part in found))

    def mark(self, nodes: Ints, words: Ints) -> None:
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        bits[self.trie.tokens_of(nodes)] = 1
        words[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def _made_flags(self, states: Ints) -> npt.NDArray[np.uint8]:
        flags = self.machine.flags[states]
        unmade = (flags & UNMADE) != 0
        if unmade.any():
            self.machine.make_all(np.unique(states[unmade]).tolist())
            flags = self.machine.flags[states]
        return flags


class NativeDescent:
    """Depth first in C++; buffers are kept and grow. Not for two threads at once: the machine's lock is held."""

    def __init__(self, machine: Machine, trie: Trie, library: ctypes.CDLL) -> None:
        self.machine, self.trie = machine, trie
        self._run = library.ramet_descend
        self._run.restype = ctypes.c_int32
        self._mark = library.ramet_mark
        self._mark.restype = ctypes.c_int64
        self._stack = np.zeros(16 * 1024, dtype=np.uint8)
        self._stack_size = len(self._stack) // 16
        self._trie = (trie.first_child.ctypes.data, trie.byte.ctypes.data)
        self._resize(trie.num_nodes + 64)

    def _resize(self, room: int) -> None:
        self._room = room
        self._buffers = [np.zeros(room, dtype=np.int32) for _ in range(8)]
        self._pointers = [ctypes.c_void_p(buffer.ctypes.data) for buffer in self._buffers]

    def __call__(self, nodes: Ints, states: Ints) -> Descended:
        parts: list[tuple[Ints, ...]] = []
        while len(nodes):
            sizes = self._descend(np.ascontiguousarray(nodes), np.ascontiguousarray(states))
            lengths = (sizes[0], sizes[1], sizes[1], sizes[2], sizes[2], sizes[2], sizes[3], sizes[3])
            got = [buffer[:n].copy() for buffer, n in zip(self._buffers, lengths, strict=True)]
            parts.append(tuple(got[:6]))
            nodes, states = got[6], got[7]
            if len(states):
                self.machine.make_all(np.unique(states).tolist())
        if not parts:
            return Descended(*[_NONE] * 6)
        return Descended(*(p[0] if len(p) == 1 else np.concatenate(p) for p in zip(*parts, strict=True)))

    def mark(self, nodes: Ints, words: Ints) -> None:
        nodes = np.ascontiguousarray(nodes)
        self._mark(
            ctypes.c_void_p(nodes.ctypes.data),
            ctypes.c_int64(len(nodes)),
            ctypes.c_void_p(self.trie.single_token.ctypes.data),
            ctypes.c_void_p(self.trie.token_offset.ctypes.data),
            ctypes.c_void_p(self.trie.token_ids.ctypes.data),
            ctypes.c_void_p(words.ctypes.data),
        )

    def _descend(self, nodes: Ints, states: Ints) -> list[int]:
        machine = self.machine
        while True:
            sizes = np.full(4, self._room, dtype=np.int64)
            status = self._run(
                *map(ctypes.c_void_p, self._trie),
                ctypes.c_void_p(machine.targets.ctypes.data),
                ctypes.c_void_p(machine.actions.ctypes.data),
                ctypes.c_void_p(machine.flags.ctypes.data),
                ctypes.c_void_p(nodes.ctypes.data),
                ctypes.c_void_p(states.ctypes.data),
                ctypes.c_int64(len(nodes)),
                *self._pointers,
                ctypes.c_void_p(sizes.ctypes.data),
                ctypes.c_void_p(self._stack.ctypes.data),
                ctypes.c_int64(self._stack_size),
            )
            if status == 0:
                found: list[int] = sizes.tolist()
                return found
            self._resize(self._room * 2)
            self._stack = np.zeros(len(self._stack) * 2, dtype=np.uint8)
            self._stack_size *= 2
