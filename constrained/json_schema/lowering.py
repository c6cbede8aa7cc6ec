"""Records -> the expressions of `automaton.ir`.

One rule for each goal that has arrays or objects (so recursion is a call), scalars in place. Knows nothing of keywords.
Shapes that `ir.Object` and `ir.Array` have no field for (a key that must exist, items that must exist behind a prefix)
go through `stepwise`.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal, NoReturn

from ramet.constrained.automaton import ir
from ramet.constrained.json_schema import languages, numbers, stepwise
from ramet.constrained.json_schema.algebra import Algebra, Unsupported
from ramet.constrained.json_schema.free_keys import KeyClass, TooManyClasses, key_classes
from ramet.constrained.json_schema.records import (
    TYPES,
    Arrays,
    Exists,
    Finite,
    Goal,
    Numbers,
    Objects,
    Record,
    Strings,
)
from ramet.constrained.json_schema.text import Json
from ramet.constrained.regex import dfa as automata
from ramet.constrained.regex.dfa import MAX_BYTE, TooManyStates

MAX_RULES = 20_000
MAX_DISTINCT = 64
"""Free keys that an object tells apart, where it has to count different ones."""
MAX_UNIQUE = 64
"""Items that `uniqueItems` can tell apart: the machine keeps a bit for each."""


class Lowering:
    """Writes the grammar of one algebra."""

    def __init__(self, algebra: Algebra, *, spacing: ir.Spacing, any_order: bool) -> None:
        self.algebra = algebra
        self.spacing = spacing
        self.any_order = any_order
        self.rules: dict[str, ir.Expr] = {}
        self._names: dict[Goal, str] = {}
        self._taken: set[str] = set()
        self._values: dict[Goal, ir.Expr] = {}
        self._waiting: deque[Goal] = deque()
        self._at: Goal = frozenset()

    def grammar(self, goal: Goal) -> ir.Grammar:
        """All rules that the goal needs."""
        start = self._rule(goal)
        while self._waiting:
            goal = self._waiting.popleft()
            self.rules[self._names[goal]] = self._written(goal, self._body)
            if len(self.rules) > MAX_RULES:
                self.refuse(f"more than {MAX_RULES} rules")
        return ir.Grammar(rules=self.rules, start=start)

    def value(self, goal: Goal) -> ir.Expr:
        """An expression for the values of a goal: scalars in place, a call where arrays or objects may come."""
        if goal not in self._values:
            self._values[goal] = self._written(goal, self._value)
        return self._values[goal]

    def _value(self, goal: Goal) -> ir.Expr:
        if self.algebra.is_empty(goal):
            return ir.NOTHING
        if self.algebra.alternatives(goal, "array") or self.algebra.alternatives(goal, "object"):
            return ir.Ref(self._rule(goal))
        return self._body(goal)

    def _written(self, goal: Goal, write: Callable[[Goal], ir.Expr]) -> ir.Expr:
        """What `write` gives; a limit that it passes is refused at the schema of the goal."""
        before, self._at = self._at, goal
        try:
            return write(goal)
        except TooManyStates as problem:
            self.refuse(str(problem), keyword=self._costly_keyword())
        except TooManyClasses:
            self.refuse("patterns of property names that overlap in too many ways")
        finally:
            self._at = before

    def refuse(self, reason: str, *, schema_number: int | None = None, keyword: str = "") -> NoReturn:
        """Raise Unsupported at the schema of the goal being written, or at a given one."""
        literal = schema_number or min(self._at, default=self.algebra.document.root)
        raise Unsupported(self.algebra.document.schema(literal), keyword, reason,
                          code="unsupported" if schema_number else "too_complex")  # fmt: skip

    def _costly_keyword(self) -> str:
        """The keyword of the goal being written that most likely made an automaton too large."""
        value = self.algebra.document.schema(min(self._at, default=self.algebra.document.root)).value
        costly = ("multipleOf", "pattern", "format", "patternProperties", "propertyNames", "maxLength", "minLength")
        return next((name for name in costly if isinstance(value, dict) and name in value), "")

    def add_rule(self, name: str, body: ir.Expr) -> ir.Ref:
        """A rule of `stepwise`."""
        self.rules[name] = body
        if len(self.rules) > MAX_RULES:
            self.refuse(f"more than {MAX_RULES} rules")
        return ir.Ref(name)

    def _rule(self, goal: Goal) -> str:
        name = self._names.get(goal)
        if name is None:
            document = self.algebra.document
            name = "&".join(f"{'' if n > 0 else '!'}#{document.schema(n).pointer}" for n in sorted(goal)) or "any"
            if len(name) > 200 or name in self._taken:
                name = f"{name[:200]}&{len(self._names)}"
            self._names[goal] = name
            self._taken.add(name)
            self._waiting.append(goal)
        return name

    def _body(self, goal: Goal) -> ir.Expr:
        records = [record for kind in TYPES for record in self.algebra.alternatives(goal, kind)]
        composites = [self._composite(record) for record in records if isinstance(record, (Arrays, Objects))]
        return _alternatives([*self._scalars(records), *composites])

    # -- scalars ---------------------------------------------------------------------------------------------------

    def _scalars(self, records: list[Record]) -> Iterator[ir.Expr]:
        finite = [value for record in records if isinstance(record, Finite) for value in record.values]
        yield from self._constants(finite)
        found = [numbers.language(record) for record in records if isinstance(record, Numbers)]
        if found:
            union = found[0]
            for other in found[1:]:
                union = automata.union(union, other)
            yield ir.Lang(union)
        for record in records:
            if isinstance(record, Strings):
                yield string(record)

    def _constants(self, values: list[Json]) -> Iterator[ir.Expr]:
        texts = [text for value in values if not isinstance(value, (list, dict)) for text in spelled(value)]
        if len(texts) == 1:
            yield ir.Literal(texts[0])
        elif texts:
            yield ir.Lang(automata.from_texts(texts, MAX_BYTE))
        yield from (self.constant(value) for value in values if isinstance(value, (list, dict)))

    def constant(self, value: Json) -> ir.Expr:
        """Exactly this value; members of objects in the schema's order, unless any order is wanted."""
        match value:
            case list():
                items = tuple(self.constant(item) for item in value)
                return ir.Array(prefix=items, minimum=len(items), maximum=len(items), spacing=self.spacing)
            case dict():
                members = tuple(ir.Member(key, self.constant(item), required=True) for key, item in value.items())
                return ir.Object(members=members, order=self._order(), spacing=self.spacing)
            case _:
                return _alternatives([ir.Literal(text) for text in spelled(value)])

    # -- arrays ----------------------------------------------------------------------------------------------------

    def _composite(self, record: Arrays | Objects) -> ir.Expr:
        return self._array(record) if isinstance(record, Arrays) else self._object(record)

    def _array(self, record: Arrays) -> ir.Expr:
        if record.unique and (record.maximum is None or record.maximum > 1):
            return self._unique(record)
        if record.exists:
            contains = self._contains(record)
            if contains is None:
                return stepwise.array(self, record)
            return ir.Array(contains=contains, minimum=record.minimum, maximum=record.maximum, spacing=self.spacing)
        items = self._item(record.items)
        return ir.Array(
            prefix=tuple(self._item(goal) or ir.NOTHING for goal in record.prefix),
            items=items,
            minimum=record.minimum,
            maximum=record.maximum,
            spacing=self.spacing,
        )

    def _item(self, goal: Goal) -> ir.Expr | None:
        value = self.value(self.algebra.joined(goal))
        return None if value == ir.NOTHING else value

    def _contains(self, record: Arrays) -> ir.Contains | None:
        """The one `contains` that the machine counts itself, where the record is no more than that."""
        exists = next(iter(record.exists))
        if len(record.exists) > 1 or record.prefix or exists.start:
            return None
        match = self.value(self.algebra.joined(record.items, exists.goal))
        other = self.value(self.other_items(record.items, exists))
        return ir.Contains(match=match, other=other, minimum=exists.minimum, maximum=exists.maximum)

    def other_items(self, items: Goal, exists: Exists) -> Goal:
        """Items that are not counted. Without a maximum any item may go uncounted."""
        if exists.maximum is None:
            return self.algebra.joined(items)
        if len(exists.goal) != 1:
            self.refuse("maxContains over a combination of schemas")
        (literal,) = exists.goal
        return self.algebra.joined(items, frozenset({-literal}))

    def _unique(self, record: Arrays) -> ir.Expr:
        values = None if record.prefix or record.exists else self._finite_values(record.items)
        if values is None or len(values) > MAX_UNIQUE:
            self.refuse(f"uniqueItems is enforced only where at most {MAX_UNIQUE} different items are possible",
                        schema_number=record.unique, keyword="uniqueItems")  # fmt: skip
        choices = tuple(self.constant(value) for value in values)
        return ir.Array(unique=choices, minimum=record.minimum, maximum=record.maximum, spacing=self.spacing)

    def _finite_values(self, goal: Goal) -> list[Json] | None:
        """All values of a goal, or None if there are too many to list."""
        found: list[Json] = []
        for kind in TYPES:
            for record in self.algebra.alternatives(self.algebra.joined(goal), kind):
                listed = _listed(record)
                if listed is None:
                    return None
                found.extend(listed)
        return list(Finite.of(found).values)

    # -- objects ---------------------------------------------------------------------------------------------------

    def _order(self) -> Literal["fixed", "any"]:
        return "any" if self.any_order else "fixed"

    def _object(self, record: Objects) -> ir.Expr:
        if record.exists:
            return stepwise.object_(self, record)
        names, required = self.declared(record), record.required()
        members = tuple(ir.Member(name, self.value(self.member_goal(record, name)), name in required) for name in names)
        index = {name: position for position, name in enumerate(names)}
        clauses = tuple(
            ir.Clause(tuple(sorted(index[n] for n in c.present)), tuple(sorted(index[n] for n in c.then)))
            for c in sorted(record.clauses, key=lambda c: (sorted(c.present), sorted(c.then)))
            if c.present or len(c.then) != 1
        )
        parts = self.num_parts(record)
        return ir.Object(
            members=members,
            free=tuple(ir.FreeMember(each.keys, self.value(each.goal), parts) for each in self.classes(record, names)),
            minimum=record.minimum,
            maximum=record.maximum,
            clauses=clauses,
            order=self._order(),
            spacing=self.spacing,
        )

    def num_parts(self, record: Objects) -> int:
        """How many free keys are told apart by their hash, so that a repeated one is not counted as another. Four times
        those that may be needed and more, so that most keys are told apart."""
        wanted = self.num_wanted(record, MAX_DISTINCT)
        return 1 if wanted <= 1 else max(128, 1 << (4 * wanted - 1).bit_length())

    def num_wanted(self, record: Objects, limit: int) -> int:
        """How many different free keys may be needed; refused beyond the limit."""
        wanted = record.minimum - len(record.required())
        if wanted > limit:
            value = self.algebra.document.schema(min(self._at, default=self.algebra.document.root)).value
            own = isinstance(value, dict) and "minProperties" in value
            reason = f"minProperties asks for more than {limit} properties beyond the required ones"
            self.refuse(reason, keyword="minProperties" if own else "")
        return wanted

    def declared(self, record: Objects) -> list[str]:
        """The keys with a place of their own: those of the order, then those that must (not) occur."""
        named = {name for clause in record.clauses for name in (*clause.present, *clause.then)}
        named |= {name for keys, _ in record.exists if not keys.negated for name in keys.names}
        in_order = [name for name in record.demanded if name in named]
        return list(dict.fromkeys((*record.order, *in_order, *sorted(named))))

    def member_goal(self, record: Objects, name: str) -> Goal:
        """What the value of a declared key must satisfy."""
        return self.algebra.joined(record.goal(name))

    def key(self, name: str) -> ir.Expr:
        """A declared key, as it is written."""
        return ir.Literal(json.dumps(name, ensure_ascii=False).encode())

    def classes(self, record: Objects, declared: list[str]) -> list[KeyClass]:
        """The keys without a place of their own."""
        return key_classes(self.algebra, record, declared)


def string(record: Strings) -> ir.Expr:
    """One JSON string. Free text may use any escape; a pattern's text is written raw where it can be."""
    pattern = languages.all_of(record.languages)
    escapes = "all" if pattern is None else "usual"
    return ir.String(pattern=pattern, minimum=record.minimum, maximum=record.maximum, escapes=escapes)  # type: ignore[arg-type]


def spelled(value: Json) -> list[bytes]:
    """How a scalar constant may be written."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return [json.dumps(value, ensure_ascii=False).encode()]
    assert not isinstance(value, (list, dict))
    return [text.encode() for text in numbers.literals(value)]


def _listed(record: Record) -> list[Json] | None:
    match record:
        case Finite():
            return list(record.values)
        case Numbers():
            points = record.points(MAX_UNIQUE + 1)
            return None if points is None else [int(p) if p.denominator == 1 else numbers.to_decimal(p) for p in points]
        case Strings():
            language = languages.all_of(record.languages)
            texts = automata.enumerate_finite(language, 4 * MAX_UNIQUE) if language is not None else None
            return None if texts is None else [text for text in texts if languages.accepts(record, text)]
        case _:
            return None


def _alternatives(items: list[ir.Expr]) -> ir.Expr:
    unique = list(dict.fromkeys(items))
    return unique[0] if len(unique) == 1 else ir.Alt(tuple(unique))
