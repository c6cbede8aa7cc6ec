"""Schemas as unions of records, type by type: intersection, union, complement, emptiness.

The idea: a schema n and its negation are the two literals +n and -n. For one JSON type a literal *unfolds* into a union
of conjunction records whose children are goals (conjunctions of literals) that stay folded until somebody asks. Every
keyword says how it unfolds in both signs (`keywords`), so `not`, `oneOf` and `if` need no cases of their own, and
recursion is a memo of (goal, type). What cannot be said in records is refused with its pointer (`Unsupported`).

Knows no automaton over bytes and writes no grammar: `lowering` does.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ramet.constrained.json_schema import languages
from ramet.constrained.json_schema.document import Document, Literal_, Schema
from ramet.constrained.json_schema.records import (
    TYPES,
    Arrays,
    Clause,
    Exists,
    Finite,
    Goal,
    Keys,
    Numbers,
    Objects,
    Record,
    Strings,
    Type,
    absent,
    either,
    required,
    top,
)
from ramet.constrained.json_schema.text import Json, identity, is_number, to_fraction
from ramet.constrained.json_schema.validate import satisfies

Records = tuple[Record, ...]

MAX_ALTERNATIVES = 400
"""Records in one union. A schema beyond it is refused, not served slowly."""
MAX_UNFOLDED = 60_000
"""Pairs of records intersected for one schema text: what bounds hostile combinations of oneOf and not."""


_SOONER = {0: 0, 6: 2}
"""Ranks that keep their turn where the order of the text counts: finite sets first, unevaluated keywords last."""


class Unsupported(Exception):
    """A keyword that the records cannot say. Becomes GrammarRefused, or a deferred keyword where that is allowed."""

    def __init__(self, schema: Schema, keyword: str, reason: str, hint: str = "", *, code: str = "unsupported") -> None:
        super().__init__(reason)
        self.schema, self.keyword, self.reason, self.hint, self.code = schema, keyword, reason, hint, code
        self.final = code in ("circular_ref", "too_complex", "invalid_schema", "unsupported_pattern")
        """Whether leaving the keyword out cannot help, or could not be made up for by validation."""
        self.negated = False
        """Whether it was met inside a negation, where leaving it out would narrow instead of widen."""


@dataclass(frozen=True, slots=True)
class Keyword:
    """How one keyword of a schema unfolds, for a value of one of `kinds` (it says nothing of others)."""

    kinds: frozenset[Type]
    positive: "Callable[[Algebra, Schema, Type], Records]"
    negative: "Callable[[Algebra, Schema, Type], Records]"
    rank: int = 1
    """Low ranks narrow more and are met first."""


class Algebra:
    """Unfolds the literals of one document."""

    def __init__(
        self, document: Document, table: "Mapping[str, Keyword]", *, deferred: frozenset[tuple[int, str]] = frozenset()
    ) -> None:
        self.document = document
        self.table = table
        self.deferred = deferred
        """Keywords to leave out: (schema number, keyword)."""
        self._literals: dict[tuple[Literal_, Type], Records] = {}
        self._goals: dict[tuple[Goal, Type], Records] = {}
        self._open: set[tuple[Literal_, Type]] = set()
        self._empty: dict[Goal, bool] = {}
        self._empty_records: dict[Record, bool] = {}
        self._asking: set[Goal] = set()
        self._num_pairs = 0

    # -- goals -----------------------------------------------------------------------------------------------------

    def goal(self, *literals: Literal_) -> Goal:
        """The conjunction, without what asks for nothing; contradictions become the one impossible goal."""
        goal = frozenset(map(self.followed, literals)) - {self.document.true}
        if -self.document.true in goal or self.document.false in goal or any(-literal in goal for literal in goal):
            return self.nothing
        return goal - {-self.document.false}

    def joined(self, *goals: Goal) -> Goal:
        """All of the goals."""
        return self.goal(*frozenset().union(*goals))

    @property
    def nothing(self) -> Goal:
        """The goal that no value reaches."""
        return frozenset({self.document.false})

    def followed(self, literal: Literal_) -> Literal_:
        """Through schemas that are a `$ref` and nothing else."""
        seen = set()
        while True:
            schema = self.document.schema(literal)
            asserted = self.keywords(schema) if isinstance(schema.value, dict) else []
            if asserted != ["$ref"] or literal in seen:
                return literal
            seen.add(literal)
            target = self.document.resolve(schema, reference(schema, "$ref"))
            literal = target if literal > 0 else -target

    def alternatives(self, goal: Goal, kind: Type) -> Records:
        """The values of type `kind` that reach the goal, as a union of records."""
        known = self._goals.get((goal, kind))
        if known is not None:
            return known
        result: Records = (top(kind),)
        parts = [self.unfolded(literal, kind) for literal in sorted(goal, key=lambda n: (abs(n), n))]
        for part in sorted(parts, key=_finite_first):
            result = self.meet(result, part)
        self._goals[goal, kind] = result
        return result

    def unfolded(self, literal: Literal_, kind: Type) -> Records:
        """The same for one literal."""
        key = (literal, kind)
        known = self._literals.get(key)
        if known is not None:
            return known
        if key in self._open:
            schema = self.document.schema(literal)
            keyword = "$ref" if isinstance(schema.value, dict) and "$ref" in schema.value else ""
            raise Unsupported(schema, keyword, "a schema that refers to itself without consuming anything",
                              "Remove the cycle of references.", code="circular_ref")  # fmt: skip
        self._open.add(key)
        try:
            result = self._unfold(literal, kind)
        finally:
            self._open.discard(key)
        self._literals[key] = result
        return result

    def _unfold(self, literal: Literal_, kind: Type) -> Records:
        schema = self.document.schema(literal)
        if isinstance(schema.value, bool):
            return (top(kind),) if schema.value == (literal > 0) else ()
        if literal > 0:
            return self._positive(schema, kind)
        try:
            return self._negative(schema, kind)
        except Unsupported as problem:
            problem.negated = True
            raise

    def _positive(self, schema: Schema, kind: Type) -> Records:
        result: Records = (top(kind),)
        names = self.keywords(schema)
        if kind == "object":  # keys are written in the order in which the schema comes to them
            place = {name: index for index, name in enumerate(schema.value)} if isinstance(schema.value, dict) else {}
            names.sort(key=lambda name: (_SOONER.get(self.table[name].rank, 1), place[name]))
        for name in names:
            keyword = self.table[name]
            if kind in keyword.kinds:
                result = self.meet(result, keyword.positive(self, schema, kind))
                if not result:
                    break
        return result

    def _negative(self, schema: Schema, kind: Type) -> Records:
        """A value fails a schema where it fails one of its keywords."""
        parts: list[Record] = []
        for name in self.keywords(schema):
            keyword = self.table[name]
            if kind in keyword.kinds:
                parts.extend(keyword.negative(self, schema, kind))
        return self.union(record for record in parts if not self.record_is_empty(record))

    def keywords(self, schema: Schema) -> list[str]:
        """The asserting keywords of a schema object, those that narrow most first."""
        value = schema.value
        assert isinstance(value, dict)
        if "$ref" in value and schema.draft <= 7:
            return ["$ref"]
        names = [k for k in value if k in self.table and (schema.number, k) not in self.deferred]
        return sorted(names, key=lambda k: self.table[k].rank)

    # -- boolean operations ----------------------------------------------------------------------------------------

    def meet(self, left: Records, right: Records) -> Records:
        """Both unions at once."""
        self._num_pairs += len(left) * len(right)
        if self._num_pairs > MAX_UNFOLDED:
            self._too_complex(f"more than {MAX_UNFOLDED} combinations of alternatives")
        out: list[Record] = []
        for a in left:
            for b in right:
                both = self.meet_records(a, b)
                if both is not None and not self.record_is_empty(both):
                    out.append(both)
        return self.union(out)

    def meet_records(self, a: Record, b: Record) -> Record | None:
        """Both records at once; None where that is plainly empty."""
        if a is b:
            return a
        match a, b:
            case Finite(), _:
                kept = Finite.of(value for value in a.values if self.record_accepts(b, value))
                return kept if kept.values else None
            case _, Finite():
                return self.meet_records(b, a)
            case Numbers(), Numbers():
                return a.meet(b)
            case Strings(), Strings():
                return a.meet(b)
            case Arrays(), Arrays():
                return a.meet(b)
            case Objects(), Objects():
                return a.meet(b)
        raise AssertionError("records of two types never meet")

    def union(self, records: Iterable[Record]) -> Records:
        """Without repetitions; records that differ in one respect only become one."""
        out: list[Record] = list(dict.fromkeys(records))
        finite = [record for record in out if isinstance(record, Finite)]
        if len(finite) > 1:
            values = [value for record in finite for value in record.values]
            out = [Finite.of(values), *(record for record in out if not isinstance(record, Finite))]
        if len(out) > 1:
            out = _merged_strings(_merged_absences(_merged_clauses(out)))
        if len(out) > 1 and len(out) <= 40:
            out = self._without_parts(out)
        if len(out) > MAX_ALTERNATIVES:
            self._too_complex(f"more than {MAX_ALTERNATIVES} alternatives at one place")
        return tuple(out)

    def _without_parts(self, records: list[Record]) -> list[Record]:
        """Drop each record that another one contains (as far as that shows without unfolding)."""
        kept = list(records)
        for record in records:
            rest = [other for other in kept if other is not record]
            if any(self._contains(other, record) for other in rest):
                kept = rest
        return kept

    def _contains(self, big: Record, small: Record) -> bool:
        if isinstance(small, Finite) or isinstance(big, Finite):
            return isinstance(small, Finite) and all(self.record_accepts(big, value) for value in small.values)
        both = self.meet_records(small, big)
        if isinstance(both, Objects) and isinstance(small, Objects):  # an order is no constraint
            return replace(both, order=(), demanded=()) == replace(small, order=(), demanded=())
        return both == small

    def _too_complex(self, reason: str) -> None:
        raise Unsupported(self.document.schema(self.document.root), "", reason, "Simplify the combination.",
                          code="too_complex")  # fmt: skip

    # -- emptiness -------------------------------------------------------------------------------------------------

    def is_empty(self, goal: Goal) -> bool:
        """Whether no value reaches the goal. True is certain; False may be said of a schema that never ends."""
        if not goal:
            return False
        if self.document.false in goal:
            return True
        known = self._empty.get(goal)
        if known is not None:
            return known
        if goal in self._asking:
            return False
        self._asking.add(goal)
        try:
            result = not any(self.alternatives(goal, kind) for kind in TYPES)
        except Unsupported:
            return False  # whoever unfolds it for its own sake will say so
        finally:
            self._asking.discard(goal)
        self._empty[goal] = result
        return result

    def record_is_empty(self, record: Record) -> bool:
        """Whether no value fits the record, as far as that shows."""
        known = self._empty_records.get(record)
        if known is None:
            known = self._empty_records[record] = self._is_empty(record)
        return known

    def _is_empty(self, record: Record) -> bool:
        match record:
            case Finite():
                return not record.values
            case Numbers():
                return record.is_empty
            case Strings():
                return languages.is_empty(record)
            case Arrays():
                return self._array_is_empty(record)
            case _:
                return self._object_is_empty(record)

    def _array_is_empty(self, record: Arrays) -> bool:
        if record.maximum is not None and record.minimum > record.maximum:
            return True
        needed = min(record.minimum, len(record.prefix) + 1)
        if any(self.is_empty(self.joined(record.at(index))) for index in range(needed)):
            return True
        return any(self._misses(record, exists) for exists in record.exists)

    def _misses(self, record: Arrays, exists: Exists) -> bool:
        if exists.minimum == 0:
            return False
        last = len(record.prefix) if record.maximum is None else min(record.maximum - 1, len(record.prefix))
        places = range(exists.start, max(last, exists.start) + 1)
        if record.maximum is not None and record.maximum < exists.start + exists.minimum:
            return True
        return all(self.is_empty(self.joined(record.at(index), exists.goal)) for index in places)

    def _object_is_empty(self, record: Objects) -> bool:
        needed = record.required()
        if record.maximum is not None and (record.minimum > record.maximum or len(needed) > record.maximum):
            return True
        if any(self.is_empty(self.joined(record.goal(name))) for name in sorted(needed)):
            return True
        barred = {next(iter(c.present)) for c in record.clauses if len(c.present) == 1 and not c.then}
        if any(c.present <= needed and c.then <= barred for c in record.clauses):
            return True
        return any(self._lacks(record, keys, goal) for keys, goal in record.exists)

    def _lacks(self, record: Objects, keys: Keys, goal: Goal) -> bool:
        if not keys.negated and not keys.languages:
            return all(self.is_empty(self.joined(record.goal(name), goal)) for name in keys.names)
        return self.is_empty(self.joined(goal))

    # -- values ----------------------------------------------------------------------------------------------------

    def accepts(self, goal: Goal, value: Json) -> bool:
        """Whether a value of the schema's own text (or a final value) reaches the goal."""
        return all(satisfies(self.document, abs(literal), value) == (literal > 0) for literal in goal)

    def record_accepts(self, record: Record, value: Json) -> bool:
        """Whether a value fits a record."""
        match record:
            case Finite():
                return identity(value) in record.identities
            case Numbers():
                return is_number(value) and record.accepts(to_fraction(value))  # type: ignore[arg-type]
            case Strings():
                return isinstance(value, str) and languages.accepts(record, value)
            case Arrays():
                return isinstance(value, list) and self._array_accepts(record, value)
            case _:
                return isinstance(value, dict) and self._object_accepts(record, value)

    def _array_accepts(self, record: Arrays, values: list[Json]) -> bool:
        if len(values) < record.minimum or (record.maximum is not None and len(values) > record.maximum):
            return False
        if record.unique and len({identity(value) for value in values}) < len(values):
            return False
        for exists in record.exists:
            count = sum(self.accepts(exists.goal, value) for value in values[exists.start :])
            if count < exists.minimum or (exists.maximum is not None and count > exists.maximum):
                return False
        return all(self.accepts(record.at(index), value) for index, value in enumerate(values))

    def _object_accepts(self, record: Objects, value: dict[str, Json]) -> bool:
        if len(value) < record.minimum or (record.maximum is not None and len(value) > record.maximum):
            return False
        if any(clause.present <= value.keys() and not clause.then & value.keys() for clause in record.clauses):
            return False
        for keys, goal in record.exists:
            if not any(keys.holds(name) and self.accepts(goal, item) for name, item in value.items()):
                return False
        return all(self.accepts(record.goal(name), item) for name, item in value.items())


def reference(schema: Schema, keyword: str) -> str:
    """The text of a reference keyword."""
    assert isinstance(schema.value, dict)
    ref = schema.value[keyword]
    if not isinstance(ref, str):
        raise Unsupported(schema, keyword, "a reference must be a string", code="invalid_schema")
    return ref


def _finite_first(records: Records) -> int:
    """Finite sets first: they only get smaller. Then short unions."""
    return -1 if records and all(isinstance(record, Finite) for record in records) else len(records)


def _merged_clauses(records: list[Record]) -> list[Record]:
    """Object records that differ only in which keys must occur together become one."""
    out: dict[object, Record] = {}
    for record in records:
        if not isinstance(record, Objects):
            out[record] = record
            continue
        key = replace(record, clauses=frozenset[Clause](), demanded=())
        known = out.get(key)
        clauses = either(known.clauses, record.clauses, 64) if isinstance(known, Objects) else None
        if not isinstance(known, Objects):
            out[key] = record
        elif clauses is not None:
            demanded = tuple(dict.fromkeys((*known.demanded, *record.demanded)))
            out[key] = replace(record, clauses=clauses, demanded=demanded)
        else:
            out[record] = record
    return list(out.values())


def _merged_absences(records: list[Record]) -> list[Record]:
    """`the key is absent` or `it is there and its value fits` is one record: the value fits, where the key is there."""
    present: dict[object, list[tuple[Objects, str]]] = {}
    for record in records:
        if isinstance(record, Objects):
            for name in record.required():
                present.setdefault(_apart_from(record, name), []).append((record, name))
    merged: dict[Record, Record | None] = {}
    for record in records:
        if not isinstance(record, Objects) or record in merged:
            continue
        for name in (next(iter(c.present)) for c in record.clauses if len(c.present) == 1 and not c.then):
            partner = next((other for other, n in present.get(_apart_from(record, name), ()) if n == name), None)
            if partner is not None and partner not in merged:
                merged[record] = None
                merged[partner] = replace(partner, clauses=partner.clauses - {required(name)})
                break
    return [kept for record in records if (kept := merged.get(record, record)) is not None]


def _apart_from(record: Objects, name: str) -> object:
    """What the record asks for beside the presence and the value of one key."""
    rules = frozenset((keys, goal) for keys, goal in record.rules if keys != Keys(frozenset({name})))
    left = record.clauses - {required(name), absent(name)}
    return name, replace(record, rules=rules, clauses=left, demanded=(), order=())


def _merged_strings(records: list[Record]) -> list[Record]:
    """String records of equal lengths become one, by the union of their languages."""
    out: dict[object, Record] = {}
    for record in records:
        if not isinstance(record, Strings):
            out[record] = record
            continue
        key = (record.minimum, record.maximum)
        known = out.get(key)
        out[key] = languages.either(known, record) if isinstance(known, Strings) else record
    return list(out.values())
