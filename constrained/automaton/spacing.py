"""The whitespace rules of JSON as byte languages: compact, bounded, exact.

Bounded is the default for a reason: a model that may write whitespace without end sometimes does.
"""

from typing import Literal

from ramet.constrained.automaton.ir import COMPACT, Spacing
from ramet.constrained.regex.dfa import MAX_BYTE, Dfa, Row

MAX_BLANKS = 20
"""Blanks after a newline in the bounded form."""


def bounded_whitespace(max_blanks: int = MAX_BLANKS) -> Dfa:
    """Nothing, one space, or a newline and at most `max_blanks` spaces or tabs."""
    blank = ((0x09, 0x09), (0x20, 0x20))
    rows: list[Row] = [((0x0A, 0x0A, 2), (0x20, 0x20, 1)), ()]
    rows += [tuple((low, high, state + 1) for low, high in blank) for state in range(2, max_blanks + 2)]
    rows.append(())
    return Dfa(tuple(rows), frozenset(range(len(rows))), MAX_BYTE)


def any_whitespace() -> Dfa:
    """RFC 8259: any run of space, tab, newline, carriage return."""
    row = ((0x09, 0x0A, 0), (0x0D, 0x0D, 0), (0x20, 0x20, 0))
    return Dfa((row,), frozenset({0}), MAX_BYTE)


_BOUNDED = bounded_whitespace()
_EXACT = any_whitespace()

BOUNDED = Spacing(after_open=_BOUNDED, before_close=_BOUNDED, after_comma=_BOUNDED, after_colon=_BOUNDED)
"""After `{ [ , :` and before `} ]`."""
EXACT = Spacing(
    after_open=_EXACT,
    before_close=_EXACT,
    before_comma=_EXACT,
    after_comma=_EXACT,
    before_colon=_EXACT,
    after_colon=_EXACT,
)


def spacing(name: Literal["compact", "bounded", "exact"]) -> Spacing:
    """The rule that a spec names."""
    return {"compact": COMPACT, "bounded": BOUNDED, "exact": EXACT}[name]
