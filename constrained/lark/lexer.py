"""Lark's contextual lexer as one lazily made byte automaton.

Lark tries the terminals of a parser state in their order, and takes the first that matches, as long as it can. While
bytes come, a state therefore keeps the terminals that are still in the race, the best one that has matched so far, and
a watch: what must not happen after the former token's end, lest lark had read on (after "1" of a number the next bytes
must not make it "1.5"). A state from which no wanted terminal can be reached is dead.

The arrays have the layout of `automaton.machine`, so the same descent runs over the vocabulary's trie.
"""

import itertools
import threading
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ramet.constrained.automaton.machine import EXITS, UNMADE
from ramet.constrained.lark.load import Terminal
from ramet.constrained.regex.dfa import Dfa
from ramet.runtime.errors import GrammarRefused

Item = tuple[int, int, int]
"""(terminal, keyword of it or -1, state of its automaton)."""
Watch = frozenset[tuple[int, int]]
"""(number of an automaton, its state): none may accept any more."""

MAX_STATES = 60_000


class Place(NamedTuple):
    """What is known in the middle of a token."""

    lexer: int
    wanted: frozenset[str]
    """Types that the parser takes here."""
    items: frozenset[Item]
    best: int
    """The first terminal in order that has matched some prefix of what was read; -1: none yet."""
    watch: Watch
    begun: bool


class End(NamedTuple):
    """A token may end here."""

    type: str
    watch: Watch


class Lexer:
    """States of all lexers of one grammar."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.targets: npt.NDArray[np.int32] = np.full((256, 256), -1, np.int32)
        self.actions: npt.NDArray[np.int16] = np.zeros((1, 1), np.int16)  # never read: no state acts
        self.flags: npt.NDArray[np.uint8] = np.zeros(256, np.uint8)
        self.action_table: npt.NDArray[np.int32] = np.zeros((1, 3), np.int32)
        self._terminals: list[tuple[Terminal, ...]] = []
        self._lexers: dict[tuple[Terminal, ...], int] = {}
        self._places: list[Place] = []
        self._ids: dict[Place, int] = {}
        self._ends: list[End | None] = []
        self._alive: dict[Place, bool] = {}
        self._watched: list[Dfa] = []
        self._watch_ids: dict[Dfa, int] = {}

    def start(self, terminals: tuple[Terminal, ...], wanted: frozenset[str], watch: Watch) -> int:
        """The state before a token."""
        with self.lock:
            if terminals not in self._lexers:
                self._lexers[terminals] = len(self._terminals)
                self._terminals.append(terminals)
            items = {(i, -1, 0) for i in range(len(terminals))}
            items |= {(i, k, 0) for i, terminal in enumerate(terminals) for k in range(len(terminal.keywords))}
            return self._number(Place(self._lexers[terminals], wanted, frozenset(items), -1, watch, False))

    def end(self, state: int) -> End | None:
        """The token that may end in this state."""
        return self._ends[state]

    def step(self, state: int, byte: int) -> int:
        """The next state, or -1."""
        if self.flags[state] & UNMADE:
            self.make_all([state])
        return int(self.targets[state, byte])

    def next_bytes(self, state: int) -> Iterable[int]:
        """Bytes that go on."""
        if self.flags[state] & UNMADE:
            self.make_all([state])
        found: list[int] = np.flatnonzero(self.targets[state] >= 0).tolist()
        return found

    def make_all(self, states: Iterable[int]) -> None:
        """Compute the rows of these states."""
        with self.lock:
            for state in states:
                if self.flags[state] & UNMADE:
                    self._make(int(state))

    # Making ----------------------------------------------------------------------------------------------------------

    def _number(self, place: Place) -> int:
        found = self._ids.get(place)
        if found is None:
            found = self._ids[place] = len(self._places)
            if found >= MAX_STATES:
                raise GrammarRefused(
                    expected=f"terminals with at most {MAX_STATES} lexer states", got="more", at="$.grammar",
                    code="grammar_too_complex",
                )  # fmt: skip
            self._places.append(place)
            self._ends.append(self._end(place))
            if found >= len(self.flags):
                self._grow()
            self.flags[found] = UNMADE
        return found

    def _grow(self) -> None:
        size = len(self.flags)
        self.targets = np.concatenate([self.targets, np.full((size, 256), -1, np.int32)])
        self.flags = np.concatenate([self.flags, np.zeros(size, np.uint8)])

    def _make(self, state: int) -> None:
        for low, high, place in self._row(self._places[state]):
            if self._is_alive(place):
                self.targets[state, low : high + 1] = self._number(place)
        self.flags[state] = EXITS if self._ends[state] is not None else 0

    def _row(self, place: Place) -> Iterable[tuple[int, int, Place]]:
        """Byte ranges and where they lead."""
        rows = [self._dfa(place.lexer, item).rows[item[2]] for item in place.items]
        rows += [self._watched[number].rows[state] for number, state in place.watch]
        cuts = sorted({0, 256}.union(c for row in rows for low, high, _ in row for c in (low, high + 1)))
        for low, after in itertools.pairwise(cuts):
            following = self._after(place, low)
            if following is not None:
                yield low, after - 1, following

    def _after(self, place: Place, byte: int) -> Place | None:
        watch = self._watch_after(place.watch, byte)
        if watch is None:
            return None
        items = set()
        for terminal, keyword, state in place.items:
            target = self._dfa(place.lexer, (terminal, keyword, state)).step(state, byte)
            if target >= 0:
                items.add((terminal, keyword, target))
        matched = [i for i, k, s in items if k < 0 and s in self._dfa(place.lexer, (i, k, s)).accepting]
        best = min(matched, default=place.best)
        best = best if place.best < 0 else min(best, place.best)
        if best >= 0:  # terminals after it in order are out of the race
            items = {item for item in items if item[0] <= best}
        if not any(keyword < 0 for _, keyword, _ in items):
            return None
        return Place(place.lexer, place.wanted, frozenset(items), best, watch, True)

    def _watch_after(self, watch: Watch, byte: int) -> Watch | None:
        """The watch one byte later; None: it has struck."""
        found = set()
        for number, state in watch:
            dfa = self._watched[number]
            target = dfa.step(state, byte)
            if target in dfa.accepting:
                return None
            if target >= 0:
                found.add((number, target))
        return frozenset(found)

    def _end(self, place: Place) -> End | None:
        if place.best < 0 or not place.begun:
            return None
        terminal = self._terminals[place.lexer][place.best]
        now = {(keyword, state) for i, keyword, state in place.items if i == place.best}
        if not any(keyword < 0 and state in terminal.dfa.accepting for keyword, state in now):
            return None
        kind = next(
            (name for k, (name, dfa) in enumerate(terminal.keywords)
             if any(keyword == k and state in dfa.accepting for keyword, state in now)),
            terminal.name,
        )  # fmt: skip
        return End(kind, self._watch_from(place)) if kind in place.wanted else None

    def _watch_from(self, place: Place) -> Watch:
        """What the token that ends here must not grow into, and what it still must not disturb."""
        found = set(place.watch)
        for terminal, keyword, state in place.items:
            dfa = self._dfa(place.lexer, (terminal, keyword, state))
            if keyword < 0 and terminal <= place.best and dfa.rows[state]:
                found.add((self._watch_number(dfa), state))
        return frozenset(found)

    def _watch_number(self, dfa: Dfa) -> int:
        if dfa not in self._watch_ids:
            self._watch_ids[dfa] = len(self._watched)
            self._watched.append(dfa)
        return self._watch_ids[dfa]

    def _dfa(self, lexer: int, item: Item) -> Dfa:
        terminal = self._terminals[lexer][item[0]]
        return terminal.dfa if item[1] < 0 else terminal.keywords[item[1]][1]

    # Dead ends -------------------------------------------------------------------------------------------------------

    def _is_alive(self, place: Place) -> bool:
        """Whether a wanted token can still end: breadth first, until one does."""
        known = self._alive.get(place)
        if known is not None:
            return known
        before: dict[Place, Place | None] = {place: None}
        queue = [place]
        for here in queue:  # grows while we walk it
            if self._end(here) is not None or self._alive.get(here):
                self._mark_path(before, here)
                return True
            for _, _, following in self._row(here):
                if following not in before and self._alive.get(following) is not False:
                    before[following] = here
                    queue.append(following)
            if len(queue) > MAX_STATES:
                break
        self._alive.update(dict.fromkeys(before, False))
        return False

    def _mark_path(self, before: dict[Place, Place | None], place: Place | None) -> None:
        while place is not None:
            self._alive[place] = True
            place = before[place]
