"""Arrays and objects written as a chain of rules, one for each situation between two items.

For the rare records that `ir.Array` and `ir.Object` have no field for: some key that must exist with some value, items
that must exist behind a prefix or of several kinds. A situation is what the rest depends on: how many items there are
(as far as it matters), which of the demands are met. Situations from which the end cannot be reached are pruned by the
machine, like anything else that leads nowhere. Counts are situations here, so they are limited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.parted_keys import languages_of_parts
from ramet.constrained.json_schema.free_keys import KeyClass
from ramet.constrained.json_schema.records import Arrays, Clause, Exists, Goal, Objects
from ramet.constrained.regex import dfa as regular
from ramet.constrained.regex.dfa import Dfa

if TYPE_CHECKING:
    from ramet.constrained.json_schema.lowering import Lowering

MAX_SITUATIONS = 3_000
MAX_DISTINCT = 8
"""Free keys that are told apart here."""

_At = TypeVar("_At")


# Arrays --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Items:
    """How many items there are, and how many count for each demand."""

    count: int
    counted: tuple[int, ...]


def array(lowering: Lowering, record: Arrays) -> ir.Expr:
    """An array with demands on some of its items."""
    return _ArraySteps(lowering, record).expression()


class _ArraySteps:
    def __init__(self, lowering: Lowering, record: Arrays) -> None:
        self.lowering, self.record = lowering, record
        self.demands = sorted(record.exists, key=lambda e: (e.start, sorted(e.goal), e.minimum))
        starts = (demand.start for demand in self.demands)
        self.cap = max([record.minimum, (record.maximum or 0) + 1, len(record.prefix), *starts])
        self.caps = [d.minimum if d.maximum is None else d.maximum + 1 for d in self.demands]
        self.situations = _Situations[_Items](lowering, "[")

    def expression(self) -> ir.Expr:
        start = self.situations.rule(_Items(0, (0,) * len(self.demands)))
        for at in self.situations:
            self.situations.write(at, ir.Alt(tuple(self._branches(at))))
        return ir.Seq((ir.Literal(b"["), _space(self.lowering.spacing.after_open), start))

    def _branches(self, at: _Items) -> Iterator[ir.Expr]:
        if self.record.minimum <= at.count and self._are_met(at):
            yield _close(self.lowering, b"]", at.count)
        if self.record.maximum is not None and at.count >= self.record.maximum:
            return
        for goal, counted in self._choices(at):
            value = self.lowering.value(goal)
            over = any(d.maximum is not None and n > d.maximum for d, n in zip(self.demands, counted, strict=True))
            if value != ir.NOTHING and not over:
                following = _Items(min(at.count + 1, self.cap), tuple(map(min, counted, self.caps)))
                yield ir.Seq((*_comma(self.lowering, at.count), value, self.situations.rule(following)))

    def _are_met(self, at: _Items) -> bool:
        return all(
            d.minimum <= n and (d.maximum is None or n <= d.maximum)
            for d, n in zip(self.demands, at.counted, strict=True)
        )

    def _choices(self, at: _Items) -> Iterator[tuple[Goal, tuple[int, ...]]]:
        """What the next item may be, and the counts after it."""
        found: list[tuple[Goal, tuple[int, ...]]] = [(self.record.at(at.count), ())]
        for demand, count in zip(self.demands, at.counted, strict=True):
            found = [pair for goal, counted in found for pair in self._counted(demand, goal, counted, count, at)]
        yield from ((self.lowering.algebra.joined(goal), counted) for goal, counted in found)

    def _counted(
        self, demand: Exists, goal: Goal, counted: tuple[int, ...], count: int, at: _Items
    ) -> Iterator[tuple[Goal, tuple[int, ...]]]:
        """The item goes uncounted for a demand, or it counts."""
        applies = at.count >= demand.start
        yield (self.lowering.other_items(goal, demand) if applies else goal), (*counted, count)
        if applies and (demand.maximum is not None or count < demand.minimum):
            yield self.lowering.algebra.joined(goal, demand.goal), (*counted, count + 1)


# Objects -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Members:
    """Where in the order we are, which of the keys that matter occurred, which demands are met, how many members.

    A free key that is written twice is one property, with the later value. So different ones are counted by a hash
    (`automaton.parted_keys`), and none of the hash of a key that meets a demand may follow it.
    """

    position: int
    seen: frozenset[str]
    met: frozenset[int]
    count: int
    distinct: int = 0
    """Members that differ for certain, as far as the minimum cares."""
    parts: frozenset[int] = frozenset()
    """Of free keys that came, until there are enough distinct ones."""
    closed: frozenset[int] = frozenset()
    """Of free keys that met a demand."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A key that may come next."""

    key: ir.Expr
    goal: Goal
    """What its value must satisfy in any case."""
    position: int
    """Where in the order we are afterwards."""
    name: str | None
    """None for a free key."""
    demands: frozenset[int]
    """Those that it may meet."""
    part: int = -1
    """Of a free key, by its class and hash."""


def object_(lowering: Lowering, record: Objects) -> ir.Expr:
    """An object some key of which must have some value."""
    return _ObjectSteps(lowering, record).expression()


class _ObjectSteps:
    def __init__(self, lowering: Lowering, record: Objects) -> None:
        self.lowering, self.record = lowering, record
        self.order = lowering.declared(record)
        self.free = lowering.classes(record, self.order)
        self.demands = sorted(record.exists, key=lambda e: (sorted(e[0].names), e[0].negated, sorted(e[1])))
        named = {name for clause in record.clauses for name in (*clause.present, *clause.then)}
        self.tracked = named | set(self.order) if lowering.any_order else named
        self.cap = max((record.maximum or 0) + 1, 1)
        self.parts = list(self._cut())
        self.situations = _Situations[_Members](lowering, "{")

    def expression(self) -> ir.Expr:
        start = self.situations.rule(_Members(0, frozenset(), frozenset(), 0))
        for at in self.situations:
            self.situations.write(at, ir.Alt(tuple(self._branches(at))))
        return ir.Seq((ir.Literal(b"{"), _space(self.lowering.spacing.after_open), start))

    def _branches(self, at: _Members) -> Iterator[ir.Expr]:
        record = self.record
        if len(at.met) == len(self.demands) and record.minimum <= at.distinct and _hold(record.clauses, at.seen):
            yield _close(self.lowering, b"}", at.count)
        if record.maximum is not None and at.count >= record.maximum:
            return
        for choice in (*self._declared(at), *self._free(at)):
            for met in _subsets(choice.demands - at.met):
                goal = self.lowering.algebra.joined(choice.goal, *(self.demands[i][1] for i in met))
                value = self.lowering.value(goal)
                if value != ir.NOTHING:
                    rest = self.situations.rule(self._after(at, choice, met))
                    yield ir.Seq((*_comma(self.lowering, at.count), choice.key, *_colon(self.lowering), value, rest))

    def _after(self, at: _Members, choice: _Choice, met: frozenset[int]) -> _Members:
        seen = at.seen | ({choice.name} & self.tracked) if choice.name is not None else at.seen
        is_new = choice.name is not None or choice.part not in at.parts
        distinct = min(at.distinct + is_new, self.record.minimum)
        own = frozenset({choice.part}) if choice.name is None else frozenset()
        parts = at.parts | own if distinct < self.record.minimum else frozenset()
        closed = at.closed | own if met else at.closed
        return _Members(choice.position, seen, at.met | met, min(at.count + 1, self.cap), distinct, parts, closed)

    def _declared(self, at: _Members) -> Iterator[_Choice]:
        any_order = self.lowering.any_order
        for position, name in enumerate(self.order):
            if (name in at.seen) if any_order else (position < at.position):
                continue
            demands = frozenset(i for i, (keys, _) in enumerate(self.demands) if keys.holds(name))
            goal = self.lowering.member_goal(self.record, name)
            yield _Choice(self.lowering.key(name), goal, 0 if any_order else position + 1, name, demands)

    def _free(self, at: _Members) -> Iterator[_Choice]:
        yield from (choice for choice in self.parts if choice.part not in at.closed)

    def _cut(self) -> Iterator[_Choice]:
        """Free keys, in parts where it matters which of them came."""
        position = 0 if self.lowering.any_order else len(self.order)
        wanted = self.lowering.num_wanted(self.record, MAX_DISTINCT)
        for each in self.free:
            demands = frozenset(i for i, (keys, _) in enumerate(self.demands) if keys in each.inside)
            number = _num_parts(wanted, has_demands=bool(demands))
            keys: tuple[Dfa | None, ...] = (each.keys,)
            if number > 1:
                keys = languages_of_parts(regular.any_text() if each.keys is None else each.keys, number)
            for part, language in enumerate(keys):
                if language is None or not language.is_empty:
                    key = ir.String(pattern=language)
                    yield _Choice(key, each.goal, position, None, demands, self._number(each, part))

    def _number(self, each: KeyClass, part: int) -> int:
        return self.free.index(each) << 16 | part


def _num_parts(wanted: int, *, has_demands: bool) -> int:
    """Few, since each part that came is a situation more."""
    if wanted <= 1:
        return 2 if has_demands else 1
    return 1 << (2 * wanted + (0 if has_demands else 4) - 1).bit_length()


def _hold(clauses: frozenset[Clause], seen: frozenset[str]) -> bool:
    return all(c.then & seen for c in clauses if c.present <= seen)


def _subsets(items: frozenset[int]) -> Iterator[frozenset[int]]:
    listed = sorted(items)
    for bits in range(1 << len(listed)):
        yield frozenset(item for i, item in enumerate(listed) if bits >> i & 1)


# Both ----------------------------------------------------------------------------------------------------------------


class _Situations(Generic[_At]):
    """Situations still to be written, each under a rule of its own."""

    def __init__(self, lowering: Lowering, mark: str) -> None:
        self.lowering = lowering
        self.prefix = f"{mark}{len(lowering.rules)}"
        self._known: dict[_At, ir.Ref] = {}
        self._waiting: deque[_At] = deque()

    def rule(self, situation: _At) -> ir.Ref:
        """The rule of a situation."""
        if situation not in self._known:
            if len(self._known) >= MAX_SITUATIONS:
                self.lowering.refuse(f"more than {MAX_SITUATIONS} situations inside one array or object")
            self._known[situation] = ir.Ref(f"{self.prefix}.{len(self._known)}")
            self._waiting.append(situation)
            self.lowering.rules[self._known[situation].rule] = ir.NOTHING
        return self._known[situation]

    def write(self, situation: _At, body: ir.Expr) -> None:
        """Give a situation its rule."""
        self.lowering.add_rule(self._known[situation].rule, body)

    def __iter__(self) -> Iterator[_At]:
        while self._waiting:
            yield self._waiting.popleft()


def _close(lowering: Lowering, bracket: bytes, count: int) -> ir.Expr:
    close = ir.Literal(bracket)
    return ir.Seq((_space(lowering.spacing.before_close), close)) if count else close


def _comma(lowering: Lowering, count: int) -> tuple[ir.Expr, ...]:
    if not count:
        return ()
    return _space(lowering.spacing.before_comma), ir.Literal(b","), _space(lowering.spacing.after_comma)


def _colon(lowering: Lowering) -> tuple[ir.Expr, ...]:
    return _space(lowering.spacing.before_colon), ir.Literal(b":"), _space(lowering.spacing.after_colon)


def _space(language: Dfa | None) -> ir.Expr:
    return ir.EMPTY if language is None else ir.Lang(language)
