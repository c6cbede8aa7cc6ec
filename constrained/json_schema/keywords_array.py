"""How the keywords of arrays unfold into records."""

from collections.abc import Callable

from ramet.constrained.json_schema.algebra import Algebra, Keyword, Records, Unsupported
from ramet.constrained.json_schema.document import Schema
from ramet.constrained.json_schema.records import ANYTHING, Arrays, Exists, Goal, Record, Type
from ramet.constrained.json_schema.shapes import amount, entry

_ARRAY: frozenset[Type] = frozenset({"array"})


def prefix_of(algebra: Algebra, schema: Schema) -> tuple[str, list[int]]:
    """The keyword that gives schemas by position (`prefixItems`, or a list under `items`) and its literals."""
    value = schema.value
    assert isinstance(value, dict)
    for keyword in ("prefixItems", "items"):
        listed = value.get(keyword)
        if isinstance(listed, list):
            return keyword, [algebra.document.child(schema, keyword, index) for index in range(len(listed))]
    return "prefixItems", []


def _prefix(algebra: Algebra, schema: Schema) -> Records:
    _, literals = prefix_of(algebra, schema)
    return (Arrays(prefix=tuple(algebra.goal(literal) for literal in literals)),)


def _not_prefix(algebra: Algebra, schema: Schema) -> Records:
    _, literals = prefix_of(algebra, schema)
    return tuple(
        Arrays(prefix=(*(ANYTHING,) * index, algebra.goal(-literal)), minimum=index + 1)
        for index, literal in enumerate(literals)
    )


def rest_from(algebra: Algebra, start: int, literal: int) -> Records:
    """All items from `start` on satisfy the literal."""
    goal = algebra.goal(literal)
    if goal == algebra.nothing:
        return (Arrays(maximum=start),)
    return (Arrays(prefix=(ANYTHING,) * start, items=goal),)


def some_from(algebra: Algebra, start: int, literal: int) -> Records:
    """Some item from `start` on satisfies the literal."""
    goal = algebra.goal(literal)
    if goal == algebra.nothing:
        return ()
    if goal == ANYTHING:
        return (Arrays(minimum=start + 1),)
    return (Arrays(exists=frozenset({Exists(start, goal)}), minimum=start + 1),)


def _items(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    if isinstance(entry(schema, "items"), list):
        return _prefix(algebra, schema)
    start = len(prefix_of(algebra, schema)[1])
    return rest_from(algebra, start, algebra.document.child(schema, "items"))


def _not_items(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    if isinstance(entry(schema, "items"), list):
        return _not_prefix(algebra, schema)
    start = len(prefix_of(algebra, schema)[1])
    return some_from(algebra, start, -algebra.document.child(schema, "items"))


def _prefix_items(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    _check_list(schema)
    return _prefix(algebra, schema)


def _not_prefix_items(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    _check_list(schema)
    return _not_prefix(algebra, schema)


def _check_list(schema: Schema) -> None:
    if not isinstance(entry(schema, "prefixItems"), list):
        raise Unsupported(schema, "prefixItems", "prefixItems must be a list", code="invalid_schema")


def _additional(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    keyword, literals = prefix_of(algebra, schema)
    if keyword != "items":
        return (Arrays(),)  # without a list under `items`, additionalItems says nothing
    return rest_from(algebra, len(literals), algebra.document.child(schema, "additionalItems"))


def _not_additional(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    keyword, literals = prefix_of(algebra, schema)
    if keyword != "items":
        return ()
    return some_from(algebra, len(literals), -algebra.document.child(schema, "additionalItems"))


def _counted(schema: Schema) -> tuple[int, int | None]:
    assert isinstance(schema.value, dict)
    least = amount(schema, "minContains") if "minContains" in schema.value else 1
    most = amount(schema, "maxContains") if "maxContains" in schema.value else None
    return least, most


def _contains(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    least, most = _counted(schema)
    return _so_many(algebra, algebra.document.child(schema, "contains"), least, most)


def _not_contains(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    least, most = _counted(schema)
    literal = algebra.document.child(schema, "contains")
    parts: list[Record] = []
    if least > 0:
        parts.extend(_so_many(algebra, literal, 0, least - 1))
    if most is not None:
        parts.extend(_so_many(algebra, literal, most + 1, None))
    return algebra.union(parts)


def _so_many(algebra: Algebra, literal: int, least: int, most: int | None) -> Records:
    """Between `least` and `most` items satisfy the literal."""
    if most is not None and least > most:
        return ()
    goal: Goal = algebra.goal(literal)
    if goal == ANYTHING:
        return (Arrays(minimum=least, maximum=most),)
    if most == 0:
        return rest_from(algebra, 0, -literal)
    if goal == algebra.nothing:
        return () if least > 0 else (Arrays(),)
    if least == 0 and most is None:
        return (Arrays(),)
    return (Arrays(exists=frozenset({Exists(0, goal, least, most)}), minimum=least),)


def _min_items(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Arrays(minimum=amount(schema, "minItems")),)


def _below_min_items(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    least = amount(schema, "minItems")
    return (Arrays(maximum=least - 1),) if least else ()


def _max_items(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Arrays(maximum=amount(schema, "maxItems")),)


def _above_max_items(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Arrays(minimum=amount(schema, "maxItems") + 1),)


def _unique(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Arrays(unique=schema.number if entry(schema, "uniqueItems") is True else 0),)


def _not_unique(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    if entry(schema, "uniqueItems") is not True:
        return ()
    raise Unsupported(schema, "uniqueItems", "an array that must repeat an item can't be enforced")


def _keyword(
    positive: Callable[[Algebra, Schema, Type], Records], negative: Callable[[Algebra, Schema, Type], Records]
) -> Keyword:
    return Keyword(_ARRAY, positive, negative)


ARRAY_KEYWORDS: dict[str, Keyword] = {
    "prefixItems": _keyword(_prefix_items, _not_prefix_items),
    "items": _keyword(_items, _not_items),
    "additionalItems": _keyword(_additional, _not_additional),
    "contains": _keyword(_contains, _not_contains),
    "minItems": _keyword(_min_items, _below_min_items),
    "maxItems": _keyword(_max_items, _above_max_items),
    "uniqueItems": _keyword(_unique, _not_unique),
}
