"""How the keywords of objects unfold into records."""

from collections.abc import Callable

from ramet.constrained.json_schema import languages
from ramet.constrained.json_schema.algebra import Algebra, Keyword, Records, Unsupported
from ramet.constrained.json_schema.document import Schema
from ramet.constrained.json_schema.patterns import pattern_language
from ramet.constrained.json_schema.records import (
    ANYTHING,
    Clause,
    Goal,
    Keys,
    Objects,
    Record,
    Type,
    absent,
    required,
)
from ramet.constrained.json_schema.shapes import amount, entry, mapping, texts
from ramet.constrained.json_schema.text import Json
from ramet.constrained.regex.dfa import Dfa, TooManyStates

_OBJECT: frozenset[Type] = frozenset({"object"})


def constant_object(value: Json) -> dict[str, Json]:
    """The schema that only an array or object equal to `value` satisfies, one level deep."""
    if isinstance(value, list):
        return {"type": "array", "prefixItems": [{"const": item} for item in value], "items": False,
                "minItems": len(value)}  # fmt: skip
    assert isinstance(value, dict)
    return {"type": "object", "properties": {key: {"const": item} for key, item in value.items()},
            "required": list(value), "additionalProperties": False}  # fmt: skip


def _properties(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    names = tuple(mapping(schema, "properties"))
    goals = {name: algebra.goal(algebra.document.child(schema, "properties", name)) for name in names}
    rules = frozenset((Keys(frozenset({name})), goal) for name, goal in goals.items() if goal)
    return (Objects(order=names, rules=rules),)


def _not_properties(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    out: list[Record] = []
    for name in mapping(schema, "properties"):
        goal = algebra.goal(-algebra.document.child(schema, "properties", name))
        out.extend(_some_value(algebra, Keys(frozenset({name})), goal))
    return tuple(out)


def _some_value(algebra: Algebra, keys: Keys, goal: Goal) -> Records:
    """Some key of the set has a value that reaches the goal."""
    if goal == algebra.nothing:
        return ()
    if keys.languages or keys.negated:
        return (Objects(exists=frozenset({(keys, goal)}), minimum=1),)
    rules = {name: frozenset({(Keys(frozenset({name})), goal)} if goal else ()) for name in sorted(keys.names)}
    return tuple(Objects(rules=rule, clauses=frozenset({required(name)})) for name, rule in rules.items())


def pattern_keys(schema: Schema, pattern: str) -> Keys:
    """The keys in which a pattern is found."""
    return Keys(languages=frozenset({pattern_language(schema, "patternProperties", pattern)}))


def _patterns(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    rules = frozenset(
        (pattern_keys(schema, pattern), algebra.goal(algebra.document.child(schema, "patternProperties", pattern)))
        for pattern in mapping(schema, "patternProperties")
    )
    return (Objects(rules=rules),)


def _not_patterns(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    out: list[Record] = []
    for pattern in mapping(schema, "patternProperties"):
        goal = algebra.goal(-algebra.document.child(schema, "patternProperties", pattern))
        out.extend(_some_value(algebra, pattern_keys(schema, pattern), goal))
    return tuple(out)


def additional_keys(schema: Schema) -> Keys:
    """The keys that neither `properties` nor `patternProperties` of this schema name."""
    assert isinstance(schema.value, dict)
    names = mapping(schema, "properties") if "properties" in schema.value else {}
    patterns = mapping(schema, "patternProperties") if "patternProperties" in schema.value else {}
    known = frozenset(pattern_language(schema, "patternProperties", pattern) for pattern in patterns)
    return Keys(frozenset(names), known, negated=True)


def _additional(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    goal = algebra.goal(algebra.document.child(schema, "additionalProperties"))
    return (Objects(rules=frozenset({(additional_keys(schema), goal)} if goal else ())),)


def _not_additional(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    goal = algebra.goal(-algebra.document.child(schema, "additionalProperties"))
    return _some_value(algebra, additional_keys(schema), goal)


def _name_language(algebra: Algebra, schema: Schema) -> Dfa:
    """The keys that `propertyNames` allows."""
    alternatives = algebra.alternatives(algebra.goal(algebra.document.child(schema, "propertyNames")), "string")
    try:
        parts = [languages.whole(languages.as_strings(record)) for record in alternatives]
        return languages.any_of(frozenset(parts))
    except TooManyStates as problem:
        raise Unsupported(schema, "propertyNames", str(problem), code="too_complex") from None


def _names(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    outside = Keys(languages=frozenset({_name_language(algebra, schema)}), negated=True)
    return (Objects(rules=frozenset({(outside, algebra.nothing)})),)


def _not_names(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    outside = Keys(languages=frozenset({_name_language(algebra, schema)}), negated=True)
    return _some_value(algebra, outside, ANYTHING)


def _required_names(schema: Schema) -> list[str]:
    value = entry(schema, "required")
    if isinstance(value, bool):
        hint = "Draft 3's boolean `required` is not supported: list the names in the object's schema."
        raise Unsupported(schema, "required", "required must be a list of strings", hint, code="invalid_schema")
    return texts(schema, "required", value)


def _required(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    names = _required_names(schema)
    return (Objects(clauses=frozenset(map(required, names)), demanded=tuple(names)),)


def _not_required(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    names = frozenset(_required_names(schema))
    return (Objects(clauses=frozenset({Clause(names, frozenset())})),) if names else ()


def _min_properties(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Objects(minimum=amount(schema, "minProperties")),)


def _below_min_properties(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    least = amount(schema, "minProperties")
    return (Objects(maximum=least - 1),) if least else ()


def _max_properties(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Objects(maximum=amount(schema, "maxProperties")),)


def _above_max_properties(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Objects(minimum=amount(schema, "maxProperties") + 1),)


def _dependent(keyword: str, algebra: Algebra, schema: Schema, kind: Type) -> Records:
    """Where the key occurs: the names of its list occur too, or the object satisfies its schema."""
    result: Records = (Objects(),)
    for name, value in mapping(schema, keyword).items():
        if isinstance(value, list):
            needed = texts(schema, keyword, value)
            clauses = frozenset(Clause(frozenset({name}), frozenset({each})) for each in needed)
            part: Records = (Objects(clauses=clauses),)
        else:
            literal = algebra.document.child(schema, keyword, name)
            part = _absent_or(algebra, name, algebra.unfolded(literal, kind))
        result = algebra.meet(result, part)
    return result


def _absent_or(algebra: Algebra, name: str, records: Records) -> Records:
    with_key = algebra.meet((Objects(clauses=frozenset({required(name)})),), records)
    return algebra.union([Objects(clauses=frozenset({absent(name)})), *with_key])


def _not_dependent(keyword: str, algebra: Algebra, schema: Schema, kind: Type) -> Records:
    out: list[Record] = []
    for name, value in mapping(schema, keyword).items():
        if isinstance(value, list):
            needed = frozenset(texts(schema, keyword, value))
            broken = Clause(needed, frozenset())
            fails: Records = (Objects(clauses=frozenset({broken})),) if needed else ()
        else:
            fails = algebra.unfolded(-algebra.document.child(schema, keyword, name), kind)
        out.extend(algebra.meet((Objects(clauses=frozenset({required(name)})),), fails))
    return algebra.union(out)


def _dependency_keyword(keyword: str) -> Keyword:
    return Keyword(
        _OBJECT,
        lambda algebra, schema, kind: _dependent(keyword, algebra, schema, kind),
        lambda algebra, schema, kind: _not_dependent(keyword, algebra, schema, kind),
        3,
    )


def _keyword(
    positive: Callable[[Algebra, Schema, Type], Records], negative: Callable[[Algebra, Schema, Type], Records]
) -> Keyword:
    return Keyword(_OBJECT, positive, negative)


OBJECT_KEYWORDS: dict[str, Keyword] = {
    "properties": _keyword(_properties, _not_properties),
    "patternProperties": _keyword(_patterns, _not_patterns),
    "additionalProperties": _keyword(_additional, _not_additional),
    "propertyNames": _keyword(_names, _not_names),
    "required": _keyword(_required, _not_required),
    "minProperties": _keyword(_min_properties, _below_min_properties),
    "maxProperties": _keyword(_max_properties, _above_max_properties),
    **{keyword: _dependency_keyword(keyword) for keyword in ("dependentRequired", "dependentSchemas", "dependencies")},
}
