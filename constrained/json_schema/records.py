"""Conjunction records: for one JSON type, the constraints that hold together.

Values only, and their intersection. A schema becomes, type by type, a union (a tuple) of these. Children are *goals*:
conjunctions of literals (see `document`), not yet looked into, which is what keeps recursion lazy. Nothing here
recurses into a goal; whether a record is empty is asked in `algebra`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeAlias

from ramet.constrained.json_schema.text import Json, identity
from ramet.constrained.regex.dfa import Dfa

Type: TypeAlias = Literal["null", "boolean", "number", "string", "array", "object"]
TYPES: tuple[Type, ...] = ("null", "boolean", "number", "string", "array", "object")

Goal: TypeAlias = frozenset[int]
"""A conjunction of literals; the empty one asks for nothing."""
ANYTHING: Goal = frozenset()


@dataclass(frozen=True, slots=True)
class Finite:
    """Exactly one of these values, each of the record's type, as the schema spells them."""

    values: tuple[Json, ...] = field(hash=False, compare=False)
    identities: frozenset[object] = field(default=frozenset())

    @staticmethod
    def of(values: Iterable[Json]) -> "Finite":
        """Equal values once, in order."""
        unique = {identity(value): value for value in reversed(list(values))}
        return Finite(tuple(reversed(unique.values())), frozenset(unique))


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number between bounds, a multiple of `step`, no multiple of any of `not_steps`, none of `excluded`."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    step: Fraction | None = None
    not_steps: frozenset[Fraction] = frozenset()
    excluded: frozenset[Fraction] = frozenset()

    def meet(self, other: "Numbers") -> "Numbers":
        """Both hold."""
        low, low_open = _tighter(self.low, self.low_open, other.low, other.low_open, 1)
        high, high_open = _tighter(self.high, self.high_open, other.high, other.high_open, -1)
        step = _least_common_multiple(self.step, other.step)
        not_steps, excluded = self.not_steps | other.not_steps, self.excluded | other.excluded
        return Numbers(low, high, low_open, high_open, step, not_steps, excluded)

    def accepts(self, number: Fraction) -> bool:
        """Whether the number satisfies the record."""
        return (
            (self.low is None or (number > self.low if self.low_open else number >= self.low))
            and (self.high is None or (number < self.high if self.high_open else number <= self.high))
            and (self.step is None or (number / self.step).denominator == 1)
            and all((number / step).denominator != 1 for step in self.not_steps)
            and number not in self.excluded
        )

    def points(self, limit: int) -> list[Fraction] | None:
        """All numbers of the record, or None if there are more than `limit` (or a continuum)."""
        if self.low is not None and self.low == self.high:
            return [self.low] if self.accepts(self.low) else []
        if self.low is not None and self.high is not None and self.low > self.high:
            return []
        if self.step is None or self.low is None or self.high is None:
            return None
        first, last = math.ceil(self.low / self.step), math.floor(self.high / self.step)
        if last - first >= limit:
            return None
        return [point for k in range(first, last + 1) if self.accepts(point := k * self.step)]

    @property
    def is_empty(self) -> bool:
        """No number at all."""
        if self.step is not None and any((self.step / step).denominator == 1 for step in self.not_steps):
            return True
        points = self.points(1_000)
        if points is not None:
            return not points
        return self.low is not None and self.high is not None and self.low >= self.high


@dataclass(frozen=True, slots=True)
class Strings:
    """A text in all of the languages (code-point automata), of so many code points."""

    languages: frozenset[Dfa] = frozenset()
    minimum: int = 0
    maximum: int | None = None

    def meet(self, other: "Strings") -> "Strings":
        """Both hold."""
        return Strings(
            self.languages | other.languages, max(self.minimum, other.minimum), _least(self.maximum, other.maximum)
        )


@dataclass(frozen=True, slots=True)
class Exists:
    """Between `minimum` and `maximum` items from index `start` on satisfy `goal`."""

    start: int
    goal: Goal
    minimum: int = 1
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class Arrays:
    """Items by position, then `items` for all others; how many; which must occur; whether all differ."""

    prefix: tuple[Goal, ...] = ()
    items: Goal = ANYTHING
    minimum: int = 0
    maximum: int | None = None
    exists: frozenset[Exists] = frozenset()
    unique: int = 0
    """The number of a schema that asks for items which all differ; 0 where none does."""

    def at(self, index: int) -> Goal:
        """What the item at `index` must satisfy."""
        return self.prefix[index] if index < len(self.prefix) else self.items

    def meet(self, other: "Arrays") -> "Arrays":
        """Both hold."""
        length = max(len(self.prefix), len(other.prefix))
        return Arrays(
            tuple(self.at(i) | other.at(i) for i in range(length)),
            self.items | other.items,
            max(self.minimum, other.minimum),
            _least(self.maximum, other.maximum),
            self.exists | other.exists,
            max(self.unique, other.unique),
        )


@dataclass(frozen=True, slots=True)
class Keys:
    """A set of property names: those listed and those in a language; `negated`: all others."""

    names: frozenset[str] = frozenset()
    languages: frozenset[Dfa] = frozenset()
    negated: bool = False

    def holds(self, name: str) -> bool:
        """Whether the name is in the set."""
        return (name in self.names or any(dfa.matches(name) for dfa in self.languages)) != self.negated


@dataclass(frozen=True, slots=True)
class Clause:
    """If all names of `present` occur then one of `then` does. Required a: present {}, then {a}."""

    present: frozenset[str]
    then: frozenset[str]


@dataclass(frozen=True, slots=True)
class Objects:
    """Rules for values by key, which keys must occur together, how many, in which order they are written."""

    order: tuple[str, ...] = ()
    rules: frozenset[tuple[Keys, Goal]] = frozenset()
    clauses: frozenset[Clause] = frozenset()
    exists: frozenset[tuple[Keys, Goal]] = frozenset()
    """There is a key of the set whose value satisfies the goal."""
    minimum: int = 0
    maximum: int | None = None
    demanded: tuple[str, ...] = ()
    """Names of `required` lists in their order: where those without a place in `order` go."""

    def meet(self, other: "Objects") -> "Objects":
        """Both hold; the order of `self` goes first."""
        return Objects(
            _ordered(self.order, other.order),
            self.rules | other.rules,
            strongest(self.clauses | other.clauses),
            self.exists | other.exists,
            max(self.minimum, other.minimum),
            _least(self.maximum, other.maximum),
            _ordered(self.demanded, other.demanded),
        )

    def goal(self, name: str) -> Goal:
        """What the value of that key must satisfy."""
        by_name, others = _indexed(self.rules)
        goals = [goal for keys, goal in others if keys.holds(name)]
        return frozenset().union(by_name.get(name, ANYTHING), *goals)

    def names(self) -> list[str]:
        """Every name that anything here mentions: those of the order first, the others sorted."""
        mentioned = {name for clause in self.clauses for name in (*clause.present, *clause.then)}
        for keys, _ in (*self.rules, *self.exists):
            mentioned |= keys.names
        return [*self.order, *sorted(mentioned.difference(self.order))]

    def required(self) -> frozenset[str]:
        """Names that must occur by a clause of their own."""
        return frozenset(next(iter(c.then)) for c in self.clauses if not c.present and len(c.then) == 1)

    def with_clauses(self, *clauses: Clause) -> "Objects":
        """With more of them."""
        return replace(self, clauses=strongest(self.clauses | frozenset(clauses)))


Record: TypeAlias = Finite | Numbers | Strings | Arrays | Objects


def top(kind: Type) -> Record:
    """All values of a type."""
    match kind:
        case "null":
            return Finite.of([None])
        case "boolean":
            return Finite.of([False, True])
        case "number":
            return Numbers()
        case "string":
            return Strings()
        case "array":
            return Arrays()
        case _:
            return Objects()


def required(name: str) -> Clause:
    """The key occurs."""
    return Clause(frozenset(), frozenset({name}))


def absent(name: str) -> Clause:
    """The key does not occur."""
    return Clause(frozenset({name}), frozenset())


def strongest(clauses: frozenset[Clause]) -> frozenset[Clause]:
    """Without tautologies and without clauses that another one implies."""
    kept = [clause for clause in clauses if not clause.present & clause.then]
    if len(kept) > 200:  # quadratic below; that many clauses are dependentRequired lists that imply nothing
        return frozenset(kept)
    return frozenset(
        c for c in kept if not any(d is not c and d.present <= c.present and d.then <= c.then for d in kept)
    )


def either(first: frozenset[Clause], second: frozenset[Clause], limit: int) -> frozenset[Clause] | None:
    """Clauses that hold where those of one of the two sets all do; None if there would be more than `limit`."""
    common, one, other = first & second, first - second, second - first
    if len(one) * len(other) > limit:
        return None
    both = (Clause(a.present | b.present, a.then | b.then) for a in one for b in other)
    return strongest(common | frozenset(both))


def type_of(value: Json) -> Type:
    """The JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "number"


@lru_cache(maxsize=256)
def _indexed(
    rules: frozenset[tuple[Keys, Goal]],
) -> tuple[dict[str, Goal], tuple[tuple[Keys, Goal], ...]]:
    """Rules for listed names by name, and all others: an object of thousands of properties is looked up fast."""
    by_name: dict[str, Goal] = {}
    others: list[tuple[Keys, Goal]] = []
    for keys, goal in rules:
        if keys.languages or keys.negated:
            others.append((keys, goal))
            continue
        for name in keys.names:
            by_name[name] = by_name.get(name, ANYTHING) | goal
    return by_name, tuple(others)


def _ordered(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return first if first == second or not second else tuple(dict.fromkeys((*first, *second)))


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _tighter(
    a: Fraction | None, a_open: bool, b: Fraction | None, b_open: bool, sign: int
) -> tuple[Fraction | None, bool]:
    """The stronger of two bounds: the greater for sign 1 (lower bounds), the smaller for -1; open beats closed."""
    if a is None or b is None:
        return (b, b_open) if a is None else (a, a_open)
    if a == b:
        return a, a_open or b_open
    return (a, a_open) if (a - b) * sign > 0 else (b, b_open)


def _least_common_multiple(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    if a is None or b is None:
        return b if a is None else a
    denominator = a.denominator * b.denominator
    return Fraction(math.lcm(a.numerator * b.denominator, b.numerator * a.denominator), denominator)
