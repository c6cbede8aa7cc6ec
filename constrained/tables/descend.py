"""One descent: down the trie along the machine's edges, from places to the leaves.

A place is a row (node, state, low, high, add) of int32: the trie node, the machine's state there, the values of the
frame's counter for which the way there is open, and by how much it has grown on the way. Two implementations of one
contract: `NativeDescent` (C++, one scan in preorder) and `NumpyDescent` (level by level). Neither knows calls; both
say where a state has exits. States that are not made yet are made on the way.
"""

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ramet.constrained.automaton.items import UNBOUNDED
from ramet.constrained.automaton.machine import ACTS, EXITS, UNMADE
from ramet.constrained.tables.native import load_library
from ramet.constrained.tables.trie import Ints, Trie

NODE, STATE, LOW, HIGH, ADD = range(5)
"""Columns of a place."""
NO_PLACES: Ints = np.zeros((0, 5), dtype=np.int32)


class Descended(NamedTuple):
    """What a descent met."""

    exits: Ints
    """[E, 5] Places with children, those of the start too, whose state has exits."""
    counted: Ints
    """[C, 5] Places reached in a narrower window than the start's, where a token ends."""


class Rows(Protocol):
    """A deterministic byte automaton that is made on demand; see `automaton.machine` for the arrays."""

    targets: npt.NDArray[np.int32]
    actions: npt.NDArray[np.int16]
    flags: npt.NDArray[np.uint8]
    action_table: npt.NDArray[np.int32]

    def make_all(self, states: Iterable[int]) -> None: ...


class Descent(Protocol):
    """The contract."""

    def __call__(self, starts: Ints, low: int, high: int, words: Ints, *, plain: bool = False) -> Descended:
        """From `starts` [S, 5], all with this window. Tokens reached in the same window are marked in `words`.
        plain: pass over trie nodes below which all is plain text."""

    def mark(self, counted: Ints, counter: int, words: Ints) -> None:
        """Mark the tokens of places whose window holds the counter."""


def best_descent(machine: Rows, trie: Trie) -> Descent:
    """The native one where it can be had."""
    library = load_library()
    return NumpyDescent(machine, trie) if library is None else NativeDescent(machine, trie, library)


def places(nodes: Ints, state: int, low: int, high: int, add: int) -> Ints:
    """Nodes that all stand in one state with one window."""
    made = np.empty((len(nodes), 5), dtype=np.int32)
    made[:, NODE] = nodes
    made[:, STATE:] = (state, low, high, add)
    return made


class NumpyDescent:
    """Level by level: some thirty array operations a level."""

    def __init__(self, machine: Rows, trie: Trie) -> None:
        self.machine, self.trie = machine, trie

    def __call__(self, starts: Ints, low: int, high: int, words: Ints, *, plain: bool = False) -> Descended:
        exits, counted, reached = [NO_PLACES], [NO_PLACES], [NO_PLACES[:, NODE]]
        here = starts
        while len(here):
            flags = self._made_flags(here[:, STATE])
            exits.append(here[(flags & EXITS) != 0])
            below = self._step(here, flags)
            if plain:
                below = below[self.trie.plain[below[:, NODE]] == 0]
            same = (below[:, LOW] == low) & (below[:, HIGH] == high)
            reached.append(below[same, NODE])
            narrower = below[~same]
            counted.append(narrower[self.trie.single_token[narrower[:, NODE]] != -1])
            here = below[self.trie.has_children(below[:, NODE])]
        self._set_bits(np.concatenate(reached), words)
        return Descended(np.concatenate(exits), np.concatenate(counted))

    def mark(self, counted: Ints, counter: int, words: Ints) -> None:
        holds = (counted[:, LOW] <= counter) & (counter <= counted[:, HIGH])
        self._set_bits(counted[holds, NODE], words)

    def _step(self, here: Ints, flags: npt.NDArray[np.uint8]) -> Ints:
        """All places one byte below."""
        children, counts = self.trie.children_of(here[:, NODE])
        below = np.repeat(here, counts, axis=0)
        sources, symbols = below[:, STATE].copy(), self.trie.byte[children]
        below[:, NODE], below[:, STATE] = children, self.machine.targets[sources, symbols]
        alive = below[:, STATE] >= 0
        if (flags & ACTS).any():
            values = self.machine.action_table[self.machine.actions[sources, symbols]]  # [N, 3] low, high, add
            below[:, LOW] = np.maximum(below[:, LOW], values[:, 0] - below[:, ADD])
            bound = np.where(values[:, 1] >= UNBOUNDED, UNBOUNDED, values[:, 1] - below[:, ADD])
            below[:, HIGH] = np.minimum(below[:, HIGH], bound)
            below[:, ADD] += values[:, 2]
            alive &= below[:, LOW] <= below[:, HIGH]
        return below[alive]

    def _set_bits(self, nodes: Ints, words: Ints) -> None:
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
    """One scan in C++; its buffers are kept and grow. The machine's lock is held, so one thread runs at a time."""

    def __init__(self, machine: Rows, trie: Trie, library: ctypes.CDLL) -> None:
        self.machine, self.trie = machine, trie
        self._run, self._mark = library.ramet_descend, library.ramet_mark
        self._run.restype, self._mark.restype = ctypes.c_int32, None
        self._tokens = tuple(_pointer(array) for array in (trie.single_token, trie.token_offset, trie.token_ids))
        self._trie = (_pointer(trie.byte), _pointer(trie.depth), _pointer(trie.end), *self._tokens)
        self._stack = np.zeros((int(trie.depth.max()) + 2, 4), dtype=np.int32)
        self._rows = np.zeros(len(self._stack), dtype=np.int64)
        self._lengths = np.zeros(3, dtype=np.int64)
        self._scratch = tuple(_pointer(array) for array in (self._lengths, self._stack, self._rows))
        self._arrays: tuple[npt.NDArray[Any], ...] = (np.zeros(0),) * 4
        self._array_pointers: tuple[ctypes.c_void_p, ...] = ()
        self._resize(4096)

    def _resize(self, room: int) -> None:
        self._room = room
        self._lists = [np.zeros((room, 5), dtype=np.int32) for _ in range(3)]
        self._pointers = tuple(_pointer(array) for array in self._lists)

    def __call__(self, starts: Ints, low: int, high: int, words: Ints, *, plain: bool = False) -> Descended:
        skipped = _pointer(self.trie.plain) if plain else ctypes.c_void_p(None)
        parts: list[Descended] = []
        while len(starts):
            lengths = self._descend(np.ascontiguousarray(starts), low, high, words, skipped)
            exits, counted, starts = (whole[:n].copy() for whole, n in zip(self._lists, lengths, strict=True))
            parts.append(Descended(exits, counted))
            if len(starts):
                self.machine.make_all(np.unique(starts[:, STATE]).tolist())
        if len(parts) == 1:
            return parts[0]
        return Descended(*map(np.concatenate, zip(*parts, strict=True))) if parts else Descended(NO_PLACES, NO_PLACES)

    def mark(self, counted: Ints, counter: int, words: Ints) -> None:
        rows = np.ascontiguousarray(counted)
        self._mark(_pointer(rows), ctypes.c_int64(len(rows)), ctypes.c_int32(counter), *self._tokens, _pointer(words))

    def _descend(self, starts: Ints, low: int, high: int, words: Ints, skipped: ctypes.c_void_p) -> list[int]:
        while True:
            is_full = self._run(
                self._trie[0],
                skipped,
                *self._trie[1:],
                *self._machine_pointers(),
                _pointer(starts),
                ctypes.c_int64(len(starts)),
                ctypes.c_int32(low),
                ctypes.c_int32(high),
                *self._pointers,
                ctypes.c_int64(self._room),
                *self._scratch[:1],
                _pointer(words),
                *self._scratch[1:],
            )
            if not is_full:
                found: list[int] = self._lengths.tolist()
                return found
            self._resize(self._room * 4)  # bits that are set already are set again

    def _machine_pointers(self) -> tuple[ctypes.c_void_p, ...]:
        """Of the machine's arrays, which are replaced when they grow."""
        machine = self.machine
        arrays = (machine.targets, machine.actions, machine.flags, machine.action_table)
        if any(now is not then for now, then in zip(arrays, self._arrays, strict=True)):
            self._arrays, self._array_pointers = arrays, tuple(_pointer(array) for array in arrays)
        return self._array_pointers


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.__array_interface__["data"][0])
