"""A grammar without what a vocabulary can't spell: no state from which every way needs a byte that no token holds.

Byte-level vocabularies lack bytes that their training never met (controls, lead bytes of unused planes). A mask offers
none of them anyway; but a text that needs one must not be begun, and a grammar in which every text needs one is refused
before the first token. Only what would run into such a dead end is changed, so ordinary grammars come back as they are.
Exact where each byte that occurs in a token is also a token of its own, as in every byte-level vocabulary.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.containers import json_key
from ramet.constrained.automaton.references import parts_of, rebuilt
from ramet.constrained.ledger import LedgerEntry
from ramet.constrained.regex import dfa as regular
from ramet.constrained.regex.dfa import MAX_BYTE, Dfa, Edge, trimmed
from ramet.runtime.errors import GrammarRefused

_OBJECT, _ARRAY = frozenset(b'{}":,'), frozenset(b"[],")
_SHORT_ESCAPES = frozenset(b'"\\/')

_REMEMBERED = 2_000

Spans = tuple[tuple[int, int], ...]
"""Disjoint ranges, ascending, both ends included."""


def expressible(grammar: ir.Grammar, missing: frozenset[int]) -> ir.Grammar:
    """The same grammar object where nothing in it depends on the missing bytes; else a narrower one that says so."""
    if not missing:
        return grammar
    spelling = spelling_without(missing)
    if not any(spelling.is_in_trouble(part) for body in grammar.rules.values() for part in _all_parts(body)):
        return grammar
    rules = {name: rebuilt(body, spelling.narrowed) for name, body in grammar.rules.items()}
    reason = f"texts that need a byte which no token of this model holds are left out ({spelling.shown})"
    entry = LedgerEntry(pointer="#", keyword="<vocabulary>", status="stricter", reason=reason)
    return ir.Grammar(rules, grammar.start, (*grammar.notes, entry))


def cannot_express(missing: frozenset[int], *, at: str) -> GrammarRefused:
    """The refusal of a grammar in which every text needs a missing byte."""
    return GrammarRefused(
        expected="a grammar that this model's vocabulary can express",
        got=f"text that needs bytes which no token holds: {spelling_without(missing).shown}",
        at=at,
        hint="Allow another spelling, or use a model whose vocabulary has these characters.",
        code="vocabulary_cannot_express",
    )


def _all_parts(body: ir.Expr) -> Iterator[ir.Expr]:
    """Each object once: front ends share parts."""
    waiting, seen = [body], {id(body)}
    while waiting:
        part = waiting.pop()
        yield part
        for inner in parts_of(part):
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)


@lru_cache(16)
def spelling_without(missing: frozenset[int]) -> "Spelling":
    """The one `Spelling` of these missing bytes."""
    return Spelling(missing)


class Spelling:
    """What can be written without some bytes."""

    def __init__(self, missing: frozenset[int]) -> None:
        self.missing = missing
        self.bytes = _spans(sorted(missing))
        self.code_points = _code_points(missing)
        self._inside = any(0x80 <= byte < 0xC0 for byte in missing)
        """A code point may then be begun that can't be ended: a range that merely overlaps is trouble too."""
        self._spells_ascii = not any(0x20 <= byte < 0x80 for byte in missing)
        self._loses: dict[Dfa, bool] = {}
        self._gaps_lose: dict[ir.Spacing, bool] = {}

    @property
    def shown(self) -> str:
        """The bytes, for messages."""
        return ", ".join(f"0x{low:02X}" if low == high else f"0x{low:02X} to 0x{high:02X}" for low, high in self.bytes)

    def is_in_trouble(self, part: ir.Expr) -> bool:
        """Whether this part alone (not what is inside it) may need a missing byte."""
        match part:
            case ir.Literal():
                return not self.missing.isdisjoint(part.data)
            case ir.Lang():
                return self._loses_a_way(part.dfa)
            case ir.String():
                return self._inside if part.pattern is None else self._loses_a_way(part.pattern)
            case ir.Object():
                return (
                    not self.missing.isdisjoint(_OBJECT)
                    or not all(self._can_name(member.name) for member in part.members)
                    or any(self._inside if free.keys is None else self._loses_a_way(free.keys) for free in part.free)
                    or self._loses_a_gap(part.spacing)
                )
            case ir.Array():
                return not self.missing.isdisjoint(_ARRAY) or self._loses_a_gap(part.spacing)
            case _:
                return False

    def narrowed(self, part: ir.Expr) -> ir.Expr:
        """The part without what needs a missing byte."""
        if not self.is_in_trouble(part):
            return part
        match part:
            case ir.Lang():
                return ir.Lang(self.language(part.dfa))
            case ir.String():
                return replace(
                    part, pattern=self.language(regular.any_text() if part.pattern is None else part.pattern)
                )
            case ir.Object() if self.missing.isdisjoint(_OBJECT):
                members = tuple(
                    member if self._can_name(member.name) else replace(member, value=ir.NOTHING)
                    for member in part.members
                )
                free = tuple(replace(f, keys=self.language(f.keys or regular.any_text())) for f in part.free)
                return replace(part, members=members, free=free, spacing=self._spacing(part.spacing))
            case ir.Array() if self.missing.isdisjoint(_ARRAY):
                return replace(part, spacing=self._spacing(part.spacing))
            case _:
                return ir.NOTHING

    def language(self, dfa: Dfa) -> Dfa:
        """The automaton less the edges that can't be written."""
        spans = self._spans_of(dfa)
        rows = tuple(tuple(edge for whole in row for edge in _outside(whole, spans)) for row in dfa.rows)
        return trimmed(Dfa(rows, dfa.accepting, dfa.limit))

    def _spacing(self, spacing: ir.Spacing) -> ir.Spacing:
        names = ("after_open", "before_close", "before_comma", "after_comma", "before_colon", "after_colon")
        found = {name: getattr(spacing, name) for name in names}
        return ir.Spacing(**{name: None if dfa is None else self.language(dfa) for name, dfa in found.items()})

    def _spans_of(self, dfa: Dfa) -> Spans:
        return self.bytes if dfa.limit == MAX_BYTE else self.code_points

    def _can_name(self, name: str) -> bool:
        return (self._spells_ascii and name.isascii()) or self.missing.isdisjoint(json_key(name))

    def _loses_a_gap(self, spacing: ir.Spacing) -> bool:
        if spacing not in self._gaps_lose:
            self._gaps_lose[spacing] = any(map(self._loses_a_way, _gaps(spacing)))
        return self._gaps_lose[spacing]

    def _loses_a_way(self, dfa: Dfa) -> bool:
        """Whether some edge goes, not merely a part of it."""
        known = self._loses.get(dfa)
        if known is None:
            if len(self._loses) >= _REMEMBERED:
                self._loses.clear()
            known = self._loses[dfa] = self._has_lost_edge(dfa)
        return known

    def _has_lost_edge(self, dfa: Dfa) -> bool:
        spans = self._spans_of(dfa)
        if not spans:
            return False
        if self._inside and dfa.limit != MAX_BYTE:
            return any(low <= span[1] and high >= span[0] for row in dfa.rows for low, high, _ in row for span in spans)
        starts = [low for low, _ in spans]
        first, last = starts[0], spans[-1][1]
        for row in dfa.rows:
            for low, high, _ in row:
                if first <= low and high <= last and high <= spans[bisect_right(starts, low) - 1][1]:
                    return True
        return False


def _gaps(spacing: ir.Spacing) -> list[Dfa]:
    gaps = (
        spacing.after_open,
        spacing.before_close,
        spacing.before_comma,
        spacing.after_comma,
        spacing.before_colon,
        spacing.after_colon,
    )
    return list({id(gap): gap for gap in gaps if gap is not None}.values())


def _outside(edge: Edge, spans: Spans) -> list[Edge]:
    """What is left of an edge."""
    low, high, target = edge
    found: list[Edge] = []
    for first, last in spans:
        if last < low or first > high:
            continue
        if first > low:
            found.append((low, first - 1, target))
        low = last + 1
    return [*found, (low, high, target)] if low <= high else found


def _code_points(missing: frozenset[int]) -> Spans:
    """Code points that a JSON string can't hold: not raw, and not by one of the usual escapes.

    Controls are always escaped, and so may be the quotation mark, the backslash and the slash.
    """
    points = np.arange(0x110000, dtype=np.int64)
    gone = np.zeros(256, dtype=bool)
    gone[sorted(missing)] = True
    ascii_, two, three = points < 0x80, points < 0x800, points < 0x10000
    lead = np.where(
        ascii_, points, np.where(two, 0xC0 | points >> 6, np.where(three, 0xE0 | points >> 12, 0xF0 | points >> 18))
    )
    lost = gone[lead]
    lost |= ~ascii_ & gone[0x80 | points & 0x3F]
    lost |= ~two & gone[0x80 | points >> 6 & 0x3F]
    lost |= ~three & gone[0x80 | points >> 12 & 0x3F]
    lost[:0x20] = False
    lost[sorted(_SHORT_ESCAPES)] = False
    lost[0xD800:0xE000] = False  # no text has them
    return _spans(np.flatnonzero(lost).tolist())


def _spans(values: list[int]) -> Spans:
    """Runs of consecutive values."""
    found: list[tuple[int, int]] = []
    for value in values:
        if found and found[-1][1] == value - 1:
            found[-1] = (found[-1][0], value)
        else:
            found.append((value, value))
    return tuple(found)
