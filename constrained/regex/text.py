"""From code points to bytes: UTF-8, and the text between the quotation marks of a JSON string.

Takes and gives automata; knows no pattern syntax. Every state of a code-point automaton becomes a boundary state of
the byte automaton, and the bytes of one code point run through fresh states between two boundaries. The encodings of
different code points are prefix-free, so the result is deterministic as built.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ramet.constrained.regex.dfa import MAX_BYTE, MAX_STATES, Dfa, Edge, Row, TooManyStates, joined, minimised

_UTF8_ENDS = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)
_SHORT_ESCAPES = {0x22: 0x22, 0x5C: 0x5C, 0x2F: 0x2F, 0x08: 0x62, 0x0C: 0x66, 0x0A: 0x6E, 0x0D: 0x72, 0x09: 0x74}
"""Code point -> the byte after the backslash (RFC 8259)."""
_DIGITS = ((0x30, 0x39, 0), (0x41, 0x46, 10), (0x61, 0x66, 10))
"""First byte, last byte, value of the first: hex digits in both cases."""

ByteSet = tuple[tuple[int, int], ...]
"""Disjoint byte ranges, both ends included."""
Bytes = tuple[ByteSet, ...]
"""A run of byte sets: the encodings of a range of code points."""
_BACKSLASH: ByteSet = ((0x5C, 0x5C),)


@dataclass(frozen=True)
class StringContent:
    """The inside of a JSON string over bytes."""

    dfa: Dfa
    boundaries: frozenset[int]
    """States in which a whole number of code points has been read; a content byte that leaves one begins the next."""
    origin: dict[int, int]
    """Boundary state -> the state of the code-point automaton that it stands for."""


def to_utf8(dfa: Dfa, *, max_states: int = MAX_STATES) -> Dfa:
    """The UTF-8 form of a code-point language."""
    rows = _expand(dfa, _plain, max_states)
    return minimised(Dfa(rows, dfa.accepting, MAX_BYTE))


def to_json_content(dfa: Dfa, *, all_escapes: bool = False, max_states: int = MAX_STATES) -> StringContent:
    """What may stand between the quotation marks so that the decoded text is in `dfa`.

    Not minimised: boundary states keep the numbers of `dfa`'s states, which the length counter needs.
    """
    rows = _expand(dfa, _json_all if all_escapes else _json_usual, max_states)
    boundaries = frozenset(range(len(dfa.rows)))
    return StringContent(Dfa(rows, dfa.accepting, MAX_BYTE), boundaries, {s: s for s in boundaries})


def utf8_ranges(low: int, high: int) -> Iterator[Bytes]:
    """The UTF-8 encodings of code points low..high as runs of byte ranges; surrogates are left out.

    >>> list(utf8_ranges(0x61, 0x7A))
    [(((97, 122),),)]
    """
    for first, last in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)):
        start = first
        for end in _UTF8_ENDS:
            if start <= last and start <= end:
                yield from _same_length(start, min(last, end))
                start = end + 1


def _same_length(low: int, high: int) -> Iterator[Bytes]:
    a, b = chr(low).encode(), chr(high).encode()
    yield from _byte_runs(a, b, 0x80, 0xBF)


def _byte_runs(a: bytes, b: bytes, least: int, most: int) -> Iterator[Bytes]:
    """Strings between a and b of one length whose later bytes run over least..most, as products of ranges."""
    if len(a) == 1:
        yield (((a[0], b[0]),),)
        return
    if a[0] == b[0]:
        yield from ((((a[0], a[0]),), *rest) for rest in _byte_runs(a[1:], b[1:], least, most))
        return
    whole = bytes([least] * (len(a) - 1)), bytes([most] * (len(a) - 1))
    first, last = a[0], b[0]
    if a[1:] != whole[0]:
        yield from ((((first, first),), *rest) for rest in _byte_runs(a[1:], whole[1], least, most))
        first += 1
    if b[1:] != whole[1]:
        last -= 1
    if first <= last:
        yield (((first, last),), *(((least, most),) for _ in a[1:]))
    if b[1:] != whole[1]:
        yield from ((((b[0], b[0]),), *rest) for rest in _byte_runs(whole[0], b[1:], least, most))


@lru_cache(4096)
def _plain(low: int, high: int) -> tuple[Bytes, ...]:
    return tuple(utf8_ranges(low, high))


@lru_cache(4096)
def _json_usual(low: int, high: int) -> tuple[Bytes, ...]:
    return (*_json_raw(low, high), *_hex_escapes(low, min(high, 0x1F)))


@lru_cache(4096)
def _json_all(low: int, high: int) -> tuple[Bytes, ...]:
    return (*_json_raw(low, high), *_hex_escapes(low, high))


def _json_raw(low: int, high: int) -> Iterator[Bytes]:
    """Raw spellings and the short escapes."""
    for first, last in ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)):
        if max(low, first) <= min(high, last):
            yield from utf8_ranges(max(low, first), min(high, last))
    for code_point, letter in _SHORT_ESCAPES.items():
        if low <= code_point <= high:
            yield (_BACKSLASH, ((letter, letter),))


def _hex_escapes(low: int, high: int) -> Iterator[Bytes]:
    prefix: Bytes = (_BACKSLASH, ((0x75, 0x75),))
    for first, last in ((low, min(high, 0xD7FF)), (max(low, 0xE000), min(high, 0xFFFF))):
        if first <= last:
            yield from ((*prefix, *run) for run in _hex_runs(first, last, 4))
    first, last = max(low, 0x10000) - 0x10000, high - 0x10000
    for top, bottom_first, bottom_last in _surrogate_blocks(first, last) if first <= last else ():
        for upper in _hex_runs(0xD800 + top[0], 0xD800 + top[1], 4):
            for lower in _hex_runs(0xDC00 + bottom_first, 0xDC00 + bottom_last, 4):
                yield (*prefix, *upper, *prefix, *lower)


def _surrogate_blocks(first: int, last: int) -> Iterator[tuple[tuple[int, int], int, int]]:
    """(range of upper halves, first and last lower half) covering the offsets first..last."""
    a, b = divmod(first, 0x400), divmod(last, 0x400)
    if a[0] == b[0]:
        yield (a[0], a[0]), a[1], b[1]
        return
    if a[1] == 0 and b[1] == 0x3FF:
        yield (a[0], b[0]), 0, 0x3FF
        return
    yield (a[0], a[0]), a[1], 0x3FF
    if a[0] + 1 <= b[0] - 1:
        yield (a[0] + 1, b[0] - 1), 0, 0x3FF
    yield (b[0], b[0]), 0, b[1]


def _hex_runs(low: int, high: int, num_digits: int) -> Iterator[Bytes]:
    """Numbers low..high in so many hex digits of either case."""
    if num_digits == 0:
        yield ()
        return
    unit = 16 ** (num_digits - 1)
    a, b = low // unit, high // unit
    spans: list[tuple[int, int, int, int]] = []  # digits first..last, then the rest low..high
    if a == b:
        spans.append((a, a, low % unit, high % unit))
    elif low % unit == 0 and high % unit == unit - 1:
        spans.append((a, b, 0, unit - 1))
    else:
        spans.append((a, a, low % unit, unit - 1))
        spans.append((a + 1, b - 1, 0, unit - 1))
        spans.append((b, b, 0, high % unit))
    for first, last, rest_low, rest_high in spans:
        if first <= last:
            digits = tuple(_digit_ranges(first, last))
            yield from ((digits, *tail) for tail in _hex_runs(rest_low, rest_high, num_digits - 1))


def _digit_ranges(first: int, last: int) -> Iterator[tuple[int, int]]:
    for start, end, value in _DIGITS:
        low, high = max(first, value), min(last, value + end - start)
        if low <= high:
            yield start + low - value, start + high - value


def _expand(dfa: Dfa, spell: Callable[[int, int], tuple[Bytes, ...]], max_states: int) -> tuple[Row, ...]:
    """Boundary states keep their numbers; between them grow tries of byte ranges, shared where they are equal."""
    rows: list[Row] = [()] * len(dfa.rows)
    shared: dict[Row, int] = {}
    known: dict[tuple[tuple[Bytes, int], ...], int] = {}

    def node(runs: list[tuple[Bytes, int]]) -> Row:
        """The row that reads one of `runs`, each leading to its boundary."""
        edges: list[Edge] = []
        for low, high, tails in _split(runs):
            done = [target for tail, target in tails if not tail]
            target = done[0] if done else inner(tuple(tails))
            edges.append((low, high, target))
        return joined(edges)

    def inner(runs: tuple[tuple[Bytes, int], ...]) -> int:
        """The state that reads one of `runs`; what follows a lead byte is the same in most rows."""
        if runs not in known:
            known[runs] = intern(node(list(runs)))
        return known[runs]

    def intern(row: Row) -> int:
        if row not in shared:
            shared[row] = len(rows)
            rows.append(row)
            if len(rows) > max_states:
                raise TooManyStates(max_states)
        return shared[row]

    for state, row in enumerate(dfa.rows):
        runs = [(run, target) for low, high, target in row for run in spell(low, high)]
        rows[state] = node(runs)
    return tuple(rows)


def _split(runs: list[tuple[Bytes, int]]) -> Iterator[tuple[int, int, list[tuple[Bytes, int]]]]:
    """Cut the first sets of all runs into disjoint ranges, each with the runs that pass through it."""
    spans = sorted((low, high, number) for number, (run, _) in enumerate(runs) for low, high in run[0])
    cuts = sorted({c for low, high, _ in spans for c in (low, high + 1)})
    active: list[tuple[int, int]] = []
    position = 0
    for low, after in itertools.pairwise(cuts):
        active = [pair for pair in active if pair[0] >= low]
        while position < len(spans) and spans[position][0] == low:
            active.append(spans[position][1:])
            position += 1
        if active:
            yield low, after - 1, [(runs[number][0][1:], runs[number][1]) for _, number in active]
