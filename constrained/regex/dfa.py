"""Deterministic automata over integers (code points or bytes), and their boolean algebra.

Knows no syntax and no encoding. States are 0..n-1 and 0 is the start; a state's edges are sorted disjoint ranges
`(low, high, target)`, both ends included; a missing edge is the dead state, which has no number. Automata are trimmed:
every state is reachable and can reach acceptance (except the start of the empty language). Constructions stop with
`TooManyStates` at `max_states`, so nothing here runs away.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

MAX_CODE_POINT = 0x10FFFF
MAX_BYTE = 0xFF
MAX_STATES = 65_536
SURROGATES = (0xD800, 0xDFFF)

Edge = tuple[int, int, int]
Row = tuple[Edge, ...]


class TooManyStates(Exception):
    """A construction passed its limit of states. Front ends turn it into GrammarRefused with their pointer."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} automaton states")
        self.limit = limit


@dataclass(frozen=True, eq=True)
class Dfa:
    """See the module. Equal values are equal automata (not merely equal languages: `equivalent` says that)."""

    rows: tuple[Row, ...]
    accepting: frozenset[int]
    limit: int = MAX_CODE_POINT
    """Greatest symbol: MAX_CODE_POINT or MAX_BYTE."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.rows, self.accepting, self.limit))

    def step(self, state: int, symbol: int) -> int:
        """The next state, or -1."""
        for low, high, target in self.rows[state]:
            if low <= symbol <= high:
                return target
        return -1

    def matches(self, text: str | bytes) -> bool:
        """Whether the whole text is in the language."""
        state = 0
        for symbol in text if isinstance(text, bytes) else map(ord, text):
            state = self.step(state, symbol)
            if state < 0:
                return False
        return state in self.accepting

    @property
    def is_empty(self) -> bool:
        """No string at all (trimmed: an accepting state is always reachable)."""
        return not self.accepting

    def __repr__(self) -> str:
        return f"Dfa(states={len(self.rows)}, accepting={len(self.accepting)}, limit={self.limit})"


# Making --------------------------------------------------------------------------------------------------------------


def nothing(limit: int = MAX_CODE_POINT) -> Dfa:
    """The empty language."""
    return Dfa(((),), frozenset(), limit)


def from_texts(texts: Iterable[str | bytes], limit: int | None = None) -> Dfa:
    """The finite language of these texts: a trie. Bytes give a byte automaton."""
    rows: list[dict[int, int]] = [{}]
    accepting: set[int] = set()
    for text in texts:
        if limit is None:
            limit = MAX_BYTE if isinstance(text, bytes) else MAX_CODE_POINT
        state = 0
        for symbol in text if isinstance(text, bytes) else map(ord, text):
            following = rows[state].get(symbol)
            if following is None:
                following = rows[state][symbol] = len(rows)
                rows.append({})
            state = following
        accepting.add(state)
    made = tuple(tuple((s, s, t) for s, t in sorted(row.items())) for row in rows)
    return minimised(Dfa(made, frozenset(accepting), MAX_CODE_POINT if limit is None else limit))


def literal(text: str | bytes) -> Dfa:
    """Exactly this text."""
    return from_texts([text])


def any_text() -> Dfa:
    """Every string of Unicode scalar values (surrogates are no characters)."""
    return Dfa((((0, SURROGATES[0] - 1, 0), (SURROGATES[1] + 1, MAX_CODE_POINT, 0)),), frozenset({0}))


def any_bytes() -> Dfa:
    """Every byte string."""
    return Dfa((((0, MAX_BYTE, 0),),), frozenset({0}), MAX_BYTE)


def length_between(minimum: int, maximum: int | None, *, max_states: int = MAX_STATES) -> Dfa:
    """Texts of so many code points. One state a code point: strings with a bound use `ir.String`, which counts."""
    top = minimum if maximum is None else maximum
    if top + 1 > max_states:
        raise TooManyStates(max_states)
    if maximum is not None and minimum > maximum:
        return nothing()
    full = any_text().rows[0]
    rows = [tuple((low, high, i + 1) for low, high, _ in full) for i in range(top)]
    rows.append(tuple((low, high, top) for low, high, _ in full) if maximum is None else ())
    return Dfa(tuple(rows), frozenset(range(minimum, top + 1)))


# Algebra -------------------------------------------------------------------------------------------------------------


def intersection(a: Dfa, b: Dfa, *, max_states: int = MAX_STATES) -> Dfa:
    """Texts in both."""
    return _product(a, b, lambda x, y: x and y, max_states)


def union(a: Dfa, b: Dfa, *, max_states: int = MAX_STATES) -> Dfa:
    """Texts in either."""
    return _product(a, b, lambda x, y: x or y, max_states)


def difference(a: Dfa, b: Dfa, *, max_states: int = MAX_STATES) -> Dfa:
    """Texts in `a` and not in `b`."""
    return _product(a, b, lambda x, y: x and not y, max_states)


def symmetric_difference(a: Dfa, b: Dfa, *, max_states: int = MAX_STATES) -> Dfa:
    """Texts in exactly one of the two."""
    return _product(a, b, lambda x, y: x != y, max_states)


def complement(a: Dfa, *, max_states: int = MAX_STATES) -> Dfa:
    """Texts (or byte strings) not in `a`: accepting and other states change places, and the dead state is written out.

    Minimal if `a` is, so no product and no minimising.
    """
    dead = len(a.rows)
    if dead >= max_states:
        raise TooManyStates(max_states)
    alphabet = any_text().rows[0] if a.limit == MAX_CODE_POINT else any_bytes().rows[0]
    rows = [_filled(row, alphabet, dead) for row in (*a.rows, ())]
    return trimmed(Dfa(tuple(rows), frozenset(range(dead + 1)) - a.accepting, a.limit))


def _filled(row: Row, alphabet: Row, target: int) -> Row:
    """The row, with an edge to `target` for every symbol it has none for."""
    out: list[Edge] = list(row)
    for first, last, _ in alphabet:
        start = first
        for low, high, _ in row:
            if high < start or low > last:
                continue
            if low > start:
                out.append((start, low - 1, target))
            start = high + 1
        if start <= last:
            out.append((start, last, target))
    return joined(sorted(out))


def is_subset(a: Dfa, b: Dfa) -> bool:
    """Whether every text of `a` is in `b`."""
    return difference(a, b).is_empty


def equivalent(a: Dfa, b: Dfa) -> bool:
    """Whether the languages are the same."""
    return symmetric_difference(a, b).is_empty


def is_finite(a: Dfa) -> bool:
    """Whether the language has finitely many texts: no cycle, since every state is useful."""
    return _topological(a) is not None


def count(a: Dfa, limit: int) -> int | None:
    """How many texts, or None if there are more than `limit` (or infinitely many)."""
    order = _topological(a)
    if order is None:
        return None
    ways = [0] * len(a.rows)
    for state in reversed(order):
        ways[state] = (state in a.accepting) + sum((high - low + 1) * ways[t] for low, high, t in a.rows[state])
        if ways[state] > limit:
            return None
    return ways[0]


def enumerate_finite(a: Dfa, limit: int) -> list[str] | None:
    """All texts of a code-point language, in order, or None if there are more than `limit` or infinitely many."""
    if count(a, limit) is None:
        return None
    return ["".join(map(chr, symbols)) for symbols in _symbols(a)]


def enumerate_finite_bytes(a: Dfa, limit: int) -> list[bytes] | None:
    """The same for a byte language."""
    if count(a, limit) is None:
        return None
    return [bytes(symbols) for symbols in _symbols(a)]


def shortest(a: Dfa) -> list[int] | None:
    """The symbols of a shortest text, or None if the language is empty."""
    before: dict[int, tuple[int, int]] = {0: (-1, -1)}
    queue = deque([0])
    while queue:
        state = queue.popleft()
        if state in a.accepting:
            return _trace_back(before, state)
        for low, _, target in a.rows[state]:
            if target not in before:
                before[target] = (state, low)
                queue.append(target)
    return None


def _trace_back(before: dict[int, tuple[int, int]], state: int) -> list[int]:
    symbols: list[int] = []
    while before[state][0] >= 0:
        state, symbol = before[state]
        symbols.append(symbol)
    return symbols[::-1]


def _symbols(a: Dfa) -> Iterator[list[int]]:
    stack: list[tuple[int, list[int]]] = [(0, [])]
    while stack:
        state, so_far = stack.pop()
        if state in a.accepting:
            yield so_far
        for low, high, target in reversed(a.rows[state]):
            stack.extend((target, [*so_far, symbol]) for symbol in range(high, low - 1, -1))


def _topological(a: Dfa) -> list[int] | None:
    """States with all edges pointing forward, or None where there is a cycle."""
    incoming = [0] * len(a.rows)
    for row in a.rows:
        for _, _, target in row:
            incoming[target] += 1
    ready = [0] if incoming[0] == 0 else []
    order: list[int] = []
    while ready:
        state = ready.pop()
        order.append(state)
        for _, _, target in a.rows[state]:
            incoming[target] -= 1
            if incoming[target] == 0:
                ready.append(target)
    return order if len(order) == len(a.rows) else None


# Product, trim, minimise ---------------------------------------------------------------------------------------------

_DEAD = -1


def _product(a: Dfa, b: Dfa, keep: Callable[[bool, bool], bool], max_states: int) -> Dfa:
    assert a.limit == b.limit, "automata over one alphabet"
    needs_a, needs_b = not keep(False, True), not keep(True, False)  # a dead side may end the whole
    ids: dict[tuple[int, int], int] = {(0, 0): 0}
    pairs = [(0, 0)]
    rows: list[Row] = []
    accepting: set[int] = set()
    for number, (p, q) in enumerate(pairs):  # grows while we walk it
        if keep(p in a.accepting, q in b.accepting):
            accepting.add(number)
        row: list[Edge] = []
        for low, high, s, t in _merged(a.rows[p] if p >= 0 else (), b.rows[q] if q >= 0 else ()):
            if (s < 0 and needs_a) or (t < 0 and needs_b):
                continue
            target = ids.get((s, t))
            if target is None:
                target = ids[s, t] = len(pairs)
                if target >= max_states:
                    raise TooManyStates(max_states)
                pairs.append((s, t))
            row.append((low, high, target))
        rows.append(joined(row))
    return minimised(trimmed(Dfa(tuple(rows), frozenset(accepting), a.limit)))


def _merged(left: Row, right: Row) -> Iterator[tuple[int, int, int, int]]:
    """The common refinement of two rows: (low, high, left target or -1, right target or -1)."""
    cuts = sorted({c for low, high, _ in itertools.chain(left, right) for c in (low, high + 1)})
    i = j = 0
    for low, after in itertools.pairwise(cuts):
        while i < len(left) and left[i][1] < low:
            i += 1
        while j < len(right) and right[j][1] < low:
            j += 1
        s = left[i][2] if i < len(left) and left[i][0] <= low else _DEAD
        t = right[j][2] if j < len(right) and right[j][0] <= low else _DEAD
        if s >= 0 or t >= 0:
            yield low, after - 1, s, t


def joined(row: Iterable[Edge]) -> Row:
    """Neighbouring ranges with one target become one."""
    out: list[Edge] = []
    for low, high, target in row:
        if out and out[-1][2] == target and out[-1][1] + 1 == low:
            out[-1] = (out[-1][0], high, target)
        else:
            out.append((low, high, target))
    return tuple(out)


def trimmed(a: Dfa) -> Dfa:
    """Only states that a text of the language visits, renumbered from the start in breadth-first order."""
    alive = _can_accept(a)
    if 0 not in alive:
        return nothing(a.limit)
    ids, order = {0: 0}, [0]
    for state in order:
        for _, _, target in a.rows[state]:
            if target in alive and target not in ids:
                ids[target] = len(order)
                order.append(target)
    rows = tuple(joined((low, high, ids[t]) for low, high, t in a.rows[s] if t in alive) for s in order)
    return Dfa(rows, frozenset(ids[s] for s in a.accepting if s in ids), a.limit)


def _can_accept(a: Dfa) -> set[int]:
    sources: list[list[int]] = [[] for _ in a.rows]
    for state, row in enumerate(a.rows):
        for _, _, target in row:
            sources[target].append(state)
    alive = set(a.accepting)
    stack = list(alive)
    while stack:
        for source in sources[stack.pop()]:
            if source not in alive:
                alive.add(source)
                stack.append(source)
    return alive


def minimised(a: Dfa) -> Dfa:
    """An equivalent automaton with fewest states (of a trimmed one); left as it is where that would take long."""
    order = _topological(a)
    return _merge_acyclic(a, order) if order is not None else _refine(a)


def _merge_acyclic(a: Dfa, order: list[int]) -> Dfa:
    """One pass from the ends: states with one future are one state."""
    known: dict[tuple[bool, Row], int] = {}
    renamed = [0] * len(a.rows)
    for state in reversed(order):
        row = joined((low, high, renamed[t]) for low, high, t in a.rows[state])
        renamed[state] = known.setdefault((state in a.accepting, row), state)
    kept = set(known.values())
    if len(kept) == len(a.rows):
        return a
    rows = tuple(tuple((low, high, renamed[t]) for low, high, t in row) for row in a.rows)
    return trimmed(Dfa(rows, a.accepting, a.limit))


_MAX_REFINEMENT_WORK = 100_000_000
_MAX_TABLE = 20_000_000


def _refine(a: Dfa) -> Dfa:
    """Moore's partition refinement, over the few classes of symbols that some row tells apart."""
    table = _dense(a)
    if table is None:
        return a
    size = len(a.rows)
    group = np.zeros(size + 1, np.int32)  # the last is the dead state
    group[list(a.accepting)] = 1
    group[size] = 2
    num_groups = len(set(group[:size].tolist()))
    for _ in range(max(1, _MAX_REFINEMENT_WORK // table.size)):
        keys = np.concatenate([group[:size, None], group[table]], axis=1)
        seen: dict[bytes, int] = {}
        group[:size] = [seen.setdefault(key.tobytes(), len(seen)) for key in keys]
        group[size] = len(seen)
        if len(seen) == num_groups:
            return a if num_groups == size else _quotient(a, group[:size].tolist(), num_groups)
        num_groups = len(seen)
    return a


def _dense(a: Dfa) -> "npt.NDArray[np.int32] | None":
    """int32 [states, classes of symbols]: the next state, or the number of states for none. None if that is large."""
    cuts = sorted({c for row in a.rows for low, high, _ in row for c in (low, high + 1)})
    if len(a.rows) * len(cuts) > _MAX_TABLE:
        return None
    at = {cut: index for index, cut in enumerate(cuts)}
    table = np.full((len(a.rows), max(1, len(cuts) - 1)), len(a.rows), np.int32)
    for state, row in enumerate(a.rows):
        for low, high, target in row:
            table[state, at[low] : at[high + 1]] = target
    columns = list({column.tobytes(): index for index, column in enumerate(table.T)}.values())
    return np.ascontiguousarray(table[:, columns])


def _quotient(a: Dfa, group: list[int], num_groups: int) -> Dfa:
    first: dict[int, int] = {}
    for state, g in enumerate(group):
        first.setdefault(g, state)
    assert group[0] == 0, "the start's group is numbered first"
    rows = tuple(joined((low, high, group[t]) for low, high, t in a.rows[first[g]]) for g in range(num_groups))
    return trimmed(Dfa(rows, frozenset(group[s] for s in a.accepting), a.limit))
