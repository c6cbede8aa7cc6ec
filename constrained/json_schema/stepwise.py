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
from typing import TYPE_CHECKING

from ramet.constrained.automaton import ir
from ramet.constrained.json_schema.records import Arrays, Clause, Exists, Goal, Objects
from ramet.constrained.regex.dfa import Dfa

if TYPE_CHECKING:
    from ramet.constrained.json_schema.lowering import Lowering

MAX_SITUATIONS = 3_000


# Arrays --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Items:
    """How many items there are, and how many count for each demand."""

    count: int
    counted: tuple[int, ...]


def array(lowering: Lowering, record: Arrays) -> ir.Expr:
    """An array with demands on some of its items."""
    demands = sorted(record.exists, key=lambda e: (e.start, sorted(e.goal), e.minimum))
    cap = max([record.minimum, (record.maximum or 0) + 1, len(record.prefix), *(d.start for d in demands)])
    caps = [d.minimum if d.maximum is None else d.maximum + 1 for d in demands]
    names = _Names(lowering, "[")
    start = _Items(0, (0,) * len(demands))
    names.name(start)
    for at in names:
        branches: list[ir.Expr] = []
        enough = all(d.minimum <= n and (d.maximum is None or n <= d.maximum)
                     for d, n in zip(demands, at.counted, strict=True))  # fmt: skip
        if enough and record.minimum <= at.count:
            branches.append(_close(lowering, b"]", at.count))
        if record.maximum is None or at.count < record.maximum:
            for goal, counted in _choices(lowering, record, demands, at):
                value = lowering.value(goal)
                following = _Items(min(at.count + 1, cap), tuple(map(min, counted, caps)))
                over = any(d.maximum is not None and n > d.maximum for d, n in zip(demands, counted, strict=True))
                if value != ir.NOTHING and not over:
                    branches.append(ir.Seq((*_comma(lowering, at.count), value, names.name(following))))
        names.write(at, ir.Alt(tuple(branches)))
    return ir.Seq((ir.Literal(b"["), _space(lowering.spacing.after_open), names.name(start)))


def _choices(
    lowering: Lowering, record: Arrays, demands: list[Exists], at: _Items
) -> Iterator[tuple[Goal, tuple[int, ...]]]:
    """What the next item may be, and the counts after it."""
    found: list[tuple[Goal, tuple[int, ...]]] = [(record.at(at.count), ())]
    for demand, count in zip(demands, at.counted, strict=True):
        following = []
        for goal, counted in found:
            following.append((lowering.other_items(goal, demand) if at.count >= demand.start else goal,
                              (*counted, count)))  # fmt: skip
            if at.count >= demand.start and (demand.maximum is not None or count < demand.minimum):
                following.append((lowering.algebra.joined(goal, demand.goal), (*counted, count + 1)))
        found = following
    yield from ((lowering.algebra.joined(goal), counted) for goal, counted in found)


# Objects -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Members:
    """Where in the order we are, which of the keys that matter occurred, which demands are met, how many members."""

    position: int
    seen: frozenset[str]
    met: frozenset[int]
    count: int


def object_(lowering: Lowering, record: Objects) -> ir.Expr:
    """An object some key of which must have some value."""
    order = lowering.declared(record)
    demands = sorted(record.exists, key=lambda e: (sorted(e[0].names), e[0].negated, sorted(e[1])))
    free = lowering.classes(record, order)
    tracked = {name for clause in record.clauses for name in (*clause.present, *clause.then)}
    cap = max(record.minimum, (record.maximum or 0) + 1, 1)
    names = _Names(lowering, "{")
    start = _Members(0, frozenset(), frozenset(), 0)
    names.name(start)

    def choices(at: _Members) -> Iterator[tuple[ir.Expr, Goal, int, frozenset[str], frozenset[int]]]:
        """(key, goal of the value, next position, seen then, demands that the key could meet)"""
        for position in range(0 if lowering.any_order else at.position, len(order)):
            name = order[position]
            if lowering.any_order and name in at.seen:
                continue
            held = frozenset(i for i, (keys, _) in enumerate(demands) if keys.holds(name))
            following = 0 if lowering.any_order else position + 1
            yield lowering.key(name), lowering.member_goal(record, name), following, frozenset({name}), held
        for each in free:
            held = frozenset(i for i, (keys, _) in enumerate(demands) if keys in each.inside)
            yield (
                ir.String(pattern=each.keys),
                each.goal,
                at.position if lowering.any_order else len(order),
                frozenset(),
                held,
            )

    if lowering.any_order:
        tracked |= set(order)
    for at in names:
        branches: list[ir.Expr] = []
        if len(at.met) == len(demands) and record.minimum <= at.count and _hold(record.clauses, at.seen):
            branches.append(_close(lowering, b"}", at.count))
        if record.maximum is None or at.count < record.maximum:
            for key, goal, position, seen, held in choices(at):
                for met in _subsets(held - at.met):
                    wanted = lowering.algebra.joined(goal, *(demands[i][1] for i in met))
                    value = lowering.value(wanted)
                    if value == ir.NOTHING:
                        continue
                    following = _Members(position, at.seen | (seen & tracked), at.met | met, min(at.count + 1, cap))
                    member = (*_comma(lowering, at.count), key, *_colon(lowering), value, names.name(following))
                    branches.append(ir.Seq(member))
        names.write(at, ir.Alt(tuple(branches)))
    return ir.Seq((ir.Literal(b"{"), _space(lowering.spacing.after_open), names.name(start)))


def _hold(clauses: frozenset[Clause], seen: frozenset[str]) -> bool:
    return all(c.then & seen for c in clauses if c.present <= seen)


def _subsets(items: frozenset[int]) -> Iterator[frozenset[int]]:
    listed = sorted(items)
    for bits in range(1 << len(listed)):
        yield frozenset(item for i, item in enumerate(listed) if bits >> i & 1)


# Both ----------------------------------------------------------------------------------------------------------------


class _Names:
    """Situations still to be written, each under a rule of its own."""

    def __init__(self, lowering: Lowering, mark: str) -> None:
        self.lowering = lowering
        self.prefix = f"{mark}{len(lowering.rules)}"
        self._known: dict[object, ir.Ref] = {}
        self._waiting: deque[object] = deque()

    def name(self, situation: object) -> ir.Ref:
        """The rule of a situation."""
        if situation not in self._known:
            if len(self._known) >= MAX_SITUATIONS:
                self.lowering.refuse(f"more than {MAX_SITUATIONS} situations inside one array or object")
            self._known[situation] = ir.Ref(f"{self.prefix}.{len(self._known)}")
            self._waiting.append(situation)
            self.lowering.rules[self._known[situation].rule] = ir.NOTHING
        return self._known[situation]

    def write(self, situation: object, body: ir.Expr) -> None:
        """Give a situation its rule."""
        self.lowering.add_rule(self._known[situation].rule, body)

    def __iter__(self) -> Iterator:  # type: ignore[type-arg]
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
