"""Number records as byte languages: bounds, multiples and exclusions decided digit by digit.

Output is canonical JSON: no plus sign, no leading zeros, at most `MAX_DIGITS` digits unless a bound needs more. The
automaton reads a decimal from the left and keeps what it needs: how the digits so far compare with each bound, the
remainder modulo each step, whether anything but zeros came. Exponents are written only where the sign alone decides.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from ramet.constrained.json_schema.records import Numbers
from ramet.constrained.regex import dfa as automata
from ramet.constrained.regex.dfa import MAX_BYTE, Dfa, Edge, Row, TooManyStates
from ramet.constrained.regex.language import language as pattern_language
from ramet.constrained.regex.text import to_utf8

MAX_DIGITS = 24
_EXPONENT = "([eE](-[0-9]{1,3}|[+]?([0-9]{1,2}|[12][0-9]{2})))?"
"""Three digits at most, and nothing that a reader's float turns into infinity."""
MAX_REMAINDERS = 4_096
MAX_STATES = 40_000


@lru_cache(maxsize=256)
def language(record: Numbers) -> Dfa:
    """The texts of the numbers of a record. Raises TooManyStates for steps of large numerators."""
    plain = replace(record, excluded=frozenset())
    made = _any_number() if plain == Numbers() else _language(plain)
    for point in sorted(record.excluded):
        made = automata.difference(made, _spellings(point), max_states=MAX_STATES)
    return made


def is_exact(record: Numbers) -> bool:
    """Whether every spelling of every number is in the language (up to the digit caps)."""
    return not record.step and not record.not_steps and not record.excluded and _by_sign(record)


def literals(value: int | Decimal | float) -> list[str]:
    """How a constant is written: plainly, and as the schema spells it."""
    plain = _plain(Fraction(value))
    spelled = str(value) if isinstance(value, (int, Decimal)) else repr(value)
    return list(dict.fromkeys((plain, spelled.replace("E+", "E") if "E" in spelled else spelled)))


def to_decimal(value: Fraction) -> Decimal:
    """A finite decimal as such."""
    return Decimal(_plain(value))


def _plain(value: Fraction) -> str:
    sign, (digits, places) = "-" if value < 0 else "", _decimal(abs(value))
    if places == 0:
        return f"{sign}{digits}"
    padded = str(digits).rjust(places + 1, "0")
    return f"{sign}{padded[:-places]}.{padded[-places:]}"


def _decimal(value: Fraction) -> tuple[int, int]:
    """(n, k) with value = n / 10**k, k least. Every bound of a schema is a finite decimal."""
    places, scaled = 0, value
    while scaled.denominator != 1:
        scaled *= 10
        places += 1
    return scaled.numerator, places


@lru_cache(maxsize=1)
def _any_number() -> Dfa:
    digits = MAX_DIGITS - 1
    pattern = rf"-?(0|[1-9][0-9]{{0,{digits}}})(\.[0-9]{{1,{digits}}})?{_EXPONENT}"
    return to_utf8(pattern_language(pattern, whole=True))


@lru_cache(maxsize=512)
def _spellings(point: Fraction) -> Dfa:
    """Every text without exponent that spells the number, and with one for zero."""
    plain = _plain(abs(point)) if "." in _plain(abs(point)) else f"{_plain(abs(point))}.0"
    stem = plain.rstrip("0").rstrip(".").replace(".", r"\.")
    zeros = r"0*" if r"\." in stem else r"(\.0+)?"
    sign = "-?" if point == 0 else "-" if point < 0 else ""
    exponent = "([eE][+-]?[0-9]+)?" if point == 0 else ""
    return to_utf8(pattern_language(sign + stem + zeros + exponent, whole=True))


def _by_sign(record: Numbers) -> bool:
    return record.low in (None, 0) and record.high in (None, 0)


def _language(record: Numbers) -> Dfa:
    """Both signs of the magnitude language; exponents where only signs matter."""
    if record.step is None and not record.not_steps and _by_sign(record):
        return _signed(record)
    bounds = [_Limit.of(abs(bound)) for bound in (record.low, record.high) if bound is not None]
    longest = max((len(bound.whole) + len(bound.decimals) for bound in bounds), default=0)
    unlimited = _explore(_Sign(_Magnitude.of(record, 1), _Magnitude.of(record, -1)))
    return _at_most_digits(unlimited, max(MAX_DIGITS, longest + 2))


def _signed(record: Numbers) -> Dfa:
    """Bounds that are 0 or absent: the sign, and whether the number is zero, decide."""
    digits = MAX_DIGITS - 1
    some = rf"(0|[1-9][0-9]{{0,{digits}}})(\.[0-9]{{1,{digits}}})?{_EXPONENT}"
    zero = rf"0(\.0{{1,{digits}}})?{_EXPONENT}"
    everything, zeros = (to_utf8(pattern_language(p, whole=True)) for p in (some, zero))
    nonzero = automata.difference(everything, zeros)
    has_zero = not (record.low == 0 and record.low_open) and not (record.high == 0 and record.high_open)
    parts = [zeros, _after_minus(zeros)] if has_zero else []
    if record.high is None:
        parts.append(nonzero)
    if record.low is None:
        parts.append(_after_minus(nonzero))
    result = automata.nothing(MAX_BYTE)
    for part in parts:
        result = automata.union(result, part)
    return result


def _after_minus(language: Dfa) -> Dfa:
    rows: list[Row] = [((0x2D, 0x2D, 1),)]
    rows += [tuple((low, high, target + 1) for low, high, target in row) for row in language.rows]
    return Dfa(tuple(rows), frozenset(state + 1 for state in language.accepting), MAX_BYTE)


@dataclass(frozen=True, slots=True)
class _Limit:
    """One bound of a magnitude: whole-number digits, then decimals."""

    whole: str
    decimals: str

    @staticmethod
    def of(value: Fraction) -> "_Limit":
        whole, _, decimals = _plain(value).partition(".")
        return _Limit(whole, decimals)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step as numerator / 10**places, and whether multiples are wanted or forbidden."""

    modulus: int
    places: int
    wanted: bool


@dataclass(frozen=True, slots=True)
class _State:
    """Digits read so far: how they compare with each bound, remainders, decimals."""

    phase: str
    """start, zero (a leading 0), whole, point, decimals"""
    num_digits: int
    """Of the whole part, as far as bounds ask; 0 behind it."""
    order: tuple[int, ...]
    """-1, 0 or 1 for each limit: the digits so far against the limit's, place by place."""
    remainders: tuple[int, ...]
    num_decimals: int
    extra: tuple[bool, ...]
    """For each step: some decimal beyond its places is not zero."""


@dataclass(frozen=True, slots=True)
class _Magnitude:
    """Decimals without sign within bounds, as an implicit automaton."""

    low: _Limit | None
    high: _Limit | None
    low_open: bool
    high_open: bool
    steps: tuple[_Step, ...]
    is_whole: bool
    is_empty: bool

    @staticmethod
    def of(record: Numbers, sign: int) -> "_Magnitude":
        """The magnitudes of the record's numbers of that sign (zero belongs to both)."""
        low, high, low_open, high_open = record.low, record.high, record.low_open, record.high_open
        if sign < 0:
            low, high = (None if high is None else -high), (None if low is None else -low)
            low_open, high_open = high_open, low_open
        if low is not None and low < 0:
            low, low_open = None, False
        is_empty = high is not None and (high < 0 or (high == 0 and high_open))
        steps = [_step(step, wanted=False) for step in sorted(record.not_steps)]
        if record.step is not None:
            steps.append(_step(record.step, wanted=True))
        return _Magnitude(
            None if low is None else _Limit.of(low),
            None if high is None or is_empty else _Limit.of(high),
            low_open,
            high_open,
            tuple(steps),
            record.step is not None and record.step.denominator == 1,
            is_empty,
        )

    @property
    def limits(self) -> tuple[_Limit | None, _Limit | None]:
        return self.low, self.high

    def start(self) -> _State:
        none = (False,) * len(self.steps)
        return _State("start", 0, (0, 0), (0,) * len(self.steps), 0, none)

    def moves(self, state: _State) -> Iterator[tuple[int, _State]]:
        """(byte, next state)."""
        if state.phase in ("zero", "whole") and not self.is_whole:
            yield 0x2E, replace(state, phase="point", order=self._after_whole(state))
        if state.phase == "zero":
            return
        for digit in range(10):
            following = self._read(state, digit)
            if following is not None:
                yield 0x30 + digit, following

    def _read(self, state: _State, digit: int) -> _State | None:
        if state.phase in ("start", "whole"):
            phase = "zero" if state.phase == "start" and digit == 0 else "whole"
            order = tuple(
                _compared(now, digit, limit.whole if limit else "", state.num_digits)
                for now, limit in zip(state.order, self.limits, strict=True)
            )
            remainders = tuple(
                (10 * r + digit) % step.modulus for r, step in zip(state.remainders, self.steps, strict=True)
            )
            following = replace(state, phase=phase, num_digits=state.num_digits + 1, order=order, remainders=remainders)
            return following if self._may_still_fit(following) else None
        return self._read_decimal(state, digit)

    def _may_still_fit(self, state: _State) -> bool:
        if self.high is None:
            return True
        length = len(self.high.whole)
        return state.num_digits < length or (state.num_digits == length and state.order[1] <= 0)

    def _read_decimal(self, state: _State, digit: int) -> _State | None:
        index = state.num_decimals
        order = tuple(
            0 if limit is None else _compared(now, digit, limit.decimals.ljust(index + 1, "0"), index)
            for now, limit in zip(state.order, self.limits, strict=True)
        )
        if order[1] > 0:
            return None
        remainders, extra = [], []
        for r, beyond, step in zip(state.remainders, state.extra, self.steps, strict=True):
            inside = index < step.places
            remainders.append((10 * r + digit) % step.modulus if inside else r)
            extra.append(beyond or (not inside and digit != 0))
            if extra[-1] and step.wanted:
                return None
        return _State("decimals", 0, order, tuple(remainders), index + 1, tuple(extra))

    def _after_whole(self, state: _State) -> tuple[int, ...]:
        """The order once the whole part is complete: more digits are a greater number."""
        return tuple(
            0 if limit is None else now if state.num_digits == len(limit.whole)
            else 1 if state.num_digits > len(limit.whole) else -1
            for now, limit in zip(state.order, self.limits, strict=True)
        )  # fmt: skip

    def accepts(self, state: _State) -> bool:
        if state.phase in ("start", "point"):
            return False
        order = state.order if state.phase == "decimals" else self._after_whole(state)
        ends = [self._at_end(now, limit, state) for now, limit in zip(order, self.limits, strict=True)]
        if self.low is not None and (ends[0] < 0 or (ends[0] == 0 and self.low_open)):
            return False
        if self.high is not None and (ends[1] > 0 or (ends[1] == 0 and self.high_open)):
            return False
        return all(self._fits(state, i) == step.wanted for i, step in enumerate(self.steps))

    def _at_end(self, now: int, limit: _Limit | None, state: _State) -> int:
        if limit is None or now != 0:
            return now
        left = limit.decimals[state.num_decimals :]
        return -1 if left.strip("0") else 0

    def _fits(self, state: _State, index: int) -> bool:
        step = self.steps[index]
        missing = max(0, step.places - state.num_decimals)
        return not state.extra[index] and state.remainders[index] * 10**missing % step.modulus == 0

    def reduced(self, state: _State) -> _State:
        """States that differ in nothing that matters become one."""
        places = max([len(limit.decimals) for limit in self.limits if limit] + [s.places for s in self.steps] + [0])
        whole = max((len(limit.whole) for limit in self.limits if limit), default=0)
        num_digits = min(state.num_digits, whole + 1) if state.phase in ("zero", "whole") else 0
        return replace(state, num_decimals=min(state.num_decimals, places), num_digits=num_digits)


def _compared(now: int, digit: int, digits: str, index: int) -> int:
    if now != 0 or index >= len(digits):
        return now
    wanted = int(digits[index])
    return (digit > wanted) - (digit < wanted)


def _step(step: Fraction, *, wanted: bool) -> _Step:
    numerator, places = _decimal(step)
    if numerator > MAX_REMAINDERS:
        raise TooManyStates(MAX_REMAINDERS)
    return _Step(numerator, places, wanted)


@dataclass(frozen=True, slots=True)
class _Sign:
    """The automaton of both signs: states (sign, state of a magnitude)."""

    positive: _Magnitude
    negative: _Magnitude

    def start(self) -> tuple[int, _State]:
        return (0, self.positive.start())

    def moves(self, at: tuple[int, _State]) -> Iterator[tuple[int, tuple[int, _State]]]:
        sign, state = at
        if sign == 0:
            if not self.negative.is_empty:
                yield 0x2D, (-1, self.negative.start())
            sign = 1
        body = self.positive if sign > 0 else self.negative
        if not body.is_empty:
            yield from ((byte, (sign, body.reduced(following))) for byte, following in body.moves(state))

    def accepts(self, at: tuple[int, _State]) -> bool:
        sign, state = at
        return sign != 0 and (self.positive if sign > 0 else self.negative).accepts(state)


def _at_most_digits(language: Dfa, most: int) -> Dfa:
    """The texts of the language with so many digits: a layer of states for each digit read."""
    ids: dict[tuple[int, int], int] = {(0, 0): 0}
    order = [(0, 0)]
    rows: list[Row] = []
    for state, count in order:  # grows while we walk it
        row: list[Edge] = []
        for low, high, target in language.rows[state]:
            following = (target, count + (low >= 0x30))  # `-` and `.` lie below the digits
            if following[1] > most:
                continue
            if following not in ids:
                ids[following] = len(order)
                if len(order) >= MAX_STATES:
                    raise TooManyStates(MAX_STATES)
                order.append(following)
            row.append((low, high, ids[following]))
        rows.append(automata.joined(row))
    accepting = frozenset(number for number, (state, _) in enumerate(order) if state in language.accepting)
    return automata.minimised(automata.trimmed(Dfa(tuple(rows), accepting, MAX_BYTE)))


def _explore(machine: _Sign) -> Dfa:
    """The automaton of an implicit one."""
    start = machine.start()
    ids: dict[Hashable, int] = {start: 0}
    queue = deque([start])
    rows: list[Row] = []
    accepting: set[int] = set()
    while queue:
        state = queue.popleft()
        if machine.accepts(state):
            accepting.add(ids[state])
        row: list[Edge] = []
        for byte, following in sorted(machine.moves(state), key=lambda move: move[0]):
            if following not in ids:
                ids[following] = len(ids)
                if len(ids) > MAX_STATES:
                    raise TooManyStates(MAX_STATES)
                queue.append(following)
            row.append((byte, byte, ids[following]))
        rows.append(automata.joined(row))
    return automata.minimised(automata.trimmed(Dfa(tuple(rows), frozenset(accepting), MAX_BYTE)))
