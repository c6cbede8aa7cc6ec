"""unevaluatedProperties and unevaluatedItems: what the rest of the schema has looked at, branch by branch.

Which properties or items are evaluated depends on which subschemas pass. So the schema is unfolded once more, this
time keeping in each branch what was evaluated: an anyOf is split by each member passing or failing. Within one branch
the keyword is then an ordinary rule for the keys (or positions) left over.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ramet.constrained.json_schema.algebra import Algebra, Keyword, Records, Unsupported, reference
from ramet.constrained.json_schema.document import Literal_, Schema
from ramet.constrained.json_schema.keywords_array import prefix_of
from ramet.constrained.json_schema.patterns import pattern_language
from ramet.constrained.json_schema.records import (
    ANYTHING,
    Arrays,
    Clause,
    Exists,
    Keys,
    Objects,
    Record,
    Type,
    absent,
    required,
    top,
)
from ramet.constrained.json_schema.shapes import mapping, schema_list
from ramet.constrained.regex.dfa import Dfa

_OWN = {"object": "unevaluatedProperties", "array": "unevaluatedItems"}
_IN_PLACE = (
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "dependentSchemas",
    "dependencies",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What has been evaluated: of an object its keys, of an array its first items and those that match a schema."""

    all: bool = False
    names: frozenset[str] = frozenset()
    languages: frozenset[Dfa] = frozenset()
    prefix: int = 0
    matching: frozenset[Literal_] = field(default=frozenset())

    def __or__(self, other: "Seen") -> "Seen":
        return Seen(
            self.all or other.all,
            self.names | other.names,
            self.languages | other.languages,
            max(self.prefix, other.prefix),
            self.matching | other.matching,
        )


Branch = tuple[Record, Seen]
_NOTHING_SEEN = Seen()


def _unevaluated(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    literal = algebra.document.child(schema, _OWN[kind])
    found = _Branches(algebra, kind).of_schema(schema, without=_OWN[kind])
    return algebra.union(
        both for record, seen in found for both in algebra.meet((record,), _rule(algebra, schema, kind, literal, seen))
    )


def _rule(algebra: Algebra, schema: Schema, kind: Type, literal: Literal_, seen: Seen) -> Records:
    """What is left over satisfies the literal."""
    if seen.all:
        return (top(kind),)
    if kind == "object":
        goal = algebra.goal(literal)
        left = Keys(seen.names, seen.languages, negated=True)
        return (Objects(rules=frozenset({(left, goal)} if goal else ())),)
    if seen.matching:
        literal = algebra.document.any_of((literal, *sorted(seen.matching)), schema)
    goal = algebra.goal(literal)
    if goal == algebra.nothing:
        return (Arrays(maximum=seen.prefix),)
    return (Arrays(prefix=(ANYTHING,) * seen.prefix, items=goal),)


def _not_unevaluated(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    """The values that pass all else and have something left over which fails: branches say exactly what is left."""
    literal = algebra.document.child(schema, _OWN[kind])
    found = _Branches(algebra, kind).of_schema(schema, without=_OWN[kind])
    return algebra.union(
        both for record, seen in found for both in algebra.meet((record,), _broken_rule(algebra, kind, literal, seen))
    )


def _broken_rule(algebra: Algebra, kind: Type, literal: Literal_, seen: Seen) -> Records:
    """Something is left over that fails the literal."""
    goal = algebra.goal(-literal, *(-each for each in seen.matching))
    if seen.all or goal == algebra.nothing:
        return ()
    if kind == "object":
        left = Keys(seen.names, seen.languages, negated=True)
        return (Objects(exists=frozenset({(left, goal)}), minimum=1),)
    return (Arrays(exists=frozenset({Exists(seen.prefix, goal)}), minimum=seen.prefix + 1),)


class _Branches:
    """Unfolds schemas for one type, with what each branch evaluates."""

    def __init__(self, algebra: Algebra, kind: Type) -> None:
        self.algebra, self.kind = algebra, kind
        self._open: set[int] = set()

    def of(self, literal: Literal_) -> list[Branch]:
        """The branches of a positive literal."""
        schema = self.algebra.document.schema(literal)
        if isinstance(schema.value, bool):
            return [(record, _NOTHING_SEEN) for record in self.algebra.unfolded(literal, self.kind)]
        if literal in self._open:
            raise Unsupported(schema, "$ref", "a schema that refers to itself without consuming anything",
                              code="circular_ref")  # fmt: skip
        self._open.add(literal)
        try:
            return self.of_schema(schema)
        finally:
            self._open.discard(literal)

    def of_schema(self, schema: Schema, without: str | None = None) -> list[Branch]:
        """The branches of a schema object."""
        out: list[Branch] = [(top(self.kind), self._own(schema, without))]
        for keyword in self.algebra.keywords(schema):
            if keyword == without:
                continue
            if keyword in _IN_PLACE:
                out = self._product(out, self._in_place(schema, keyword))
            elif self.kind in self.algebra.table[keyword].kinds:
                records = self.algebra.table[keyword].positive(self.algebra, schema, self.kind)
                out = self._product(out, [(record, _NOTHING_SEEN) for record in records])
        return out

    def _own(self, schema: Schema, without: str | None) -> Seen:
        """What the keywords of this very schema evaluate."""
        value = schema.value
        assert isinstance(value, dict)
        if "$ref" in value and schema.draft <= 7:
            return _NOTHING_SEEN
        if self.kind == "object":
            everything = {"additionalProperties", "unevaluatedProperties"} - {without}
            patterns = mapping(schema, "patternProperties") if "patternProperties" in value else {}
            return Seen(
                all=bool(everything & value.keys()),
                names=frozenset(mapping(schema, "properties")) if "properties" in value else frozenset(),
                languages=frozenset(pattern_language(schema, "patternProperties", each) for each in patterns),
            )
        everything = {"items", "additionalItems", "unevaluatedItems"} - {without}
        if isinstance(value.get("items"), list):
            everything.discard("items")
        elif "items" not in value:
            everything.discard("additionalItems")
        matching = {self.algebra.document.child(schema, "contains")} if "contains" in value else set()
        counts = schema.draft >= 2020  # in 2019-09 contains evaluates nothing
        return Seen(
            all=bool(everything & value.keys()),
            prefix=len(prefix_of(self.algebra, schema)[1]),
            matching=frozenset(matching if counts else ()),
        )

    def _in_place(self, schema: Schema, keyword: str) -> list[Branch]:
        match keyword:
            case "$ref" | "$dynamicRef" | "$recursiveRef":
                ref = reference(schema, keyword)
                if keyword != "$ref" and not self.algebra.document.is_static(ref):
                    raise Unsupported(schema, keyword, "the target depends on the path by which it was reached",
                                      "Use $ref.")  # fmt: skip
                return self.of(self.algebra.document.resolve(schema, ref, keyword))
            case "allOf":
                out: list[Branch] = [(top(self.kind), _NOTHING_SEEN)]
                for literal in schema_list(self.algebra, schema, "allOf"):
                    out = self._product(out, self.of(literal))
                return out
            case "anyOf" | "oneOf":
                return self._chosen(schema_list(self.algebra, schema, keyword), only_one=keyword == "oneOf")
            case "if":
                return self._conditional(schema)
            case _:
                return self._dependent(schema, keyword)

    def _chosen(self, literals: list[Literal_], *, only_one: bool) -> list[Branch]:
        """Split by which members pass: (branch, how many passed so far)."""
        split: list[tuple[Branch, int]] = [((top(self.kind), _NOTHING_SEEN), 0)]
        for literal in literals:
            passing, failing = self.of(literal), self._failing(literal)
            split = [
                (branch, count + passes)
                for before, count in split
                for passes, part in ((1, passing), (0, failing))
                if not (only_one and count + passes > 1)
                for branch in self._product([before], part)
            ]
        return [branch for branch, count in split if count > 0]

    def _conditional(self, schema: Schema) -> list[Branch]:
        condition = self.algebra.document.child(schema, "if")
        out: list[Branch] = []
        for keyword, tested in (("then", self.of(condition)), ("else", self._failing(condition))):
            value = schema.value
            has_branch = isinstance(value, dict) and keyword in value
            outcome = self.of(self.algebra.document.child(schema, keyword)) if has_branch else None
            out.extend(tested if outcome is None else self._product(tested, outcome))
        return out

    def _dependent(self, schema: Schema, keyword: str) -> list[Branch]:
        out: list[Branch] = [(top(self.kind), _NOTHING_SEEN)]
        if self.kind != "object":
            return out
        for name, value in mapping(schema, keyword).items():
            without = Objects(clauses=frozenset({absent(name)}))
            with_key = Objects(clauses=frozenset({required(name)}))
            if isinstance(value, list):
                clauses = {Clause(frozenset({name}), frozenset({str(each)})) for each in value}
                part: list[Branch] = [(Objects(clauses=frozenset(clauses)), _NOTHING_SEEN)]
            else:
                inner = self.of(self.algebra.document.child(schema, keyword, name))
                part = [(without, _NOTHING_SEEN), *self._product([(with_key, _NOTHING_SEEN)], inner)]
            out = self._product(out, part)
        return out

    def _failing(self, literal: Literal_) -> list[Branch]:
        return [(record, _NOTHING_SEEN) for record in self.algebra.unfolded(-literal, self.kind)]

    def _product(self, left: list[Branch], right: list[Branch]) -> list[Branch]:
        return list(dict.fromkeys(self._pairs(left, right)))

    def _pairs(self, left: list[Branch], right: list[Branch]) -> Iterator[Branch]:
        for record, seen in left:
            for other, also_seen in right:
                for both in self.algebra.meet((record,), (other,)):
                    yield both, seen | also_seen


UNEVALUATED_KEYWORDS: dict[str, Keyword] = {
    "unevaluatedProperties": Keyword(frozenset({"object"}), _unevaluated, _not_unevaluated, 6),
    "unevaluatedItems": Keyword(frozenset({"array"}), _unevaluated, _not_unevaluated, 6),
}
