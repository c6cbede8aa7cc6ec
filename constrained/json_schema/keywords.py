"""How each keyword unfolds into records, in both signs: types, values, numbers, strings, and the combinators.

Arrays and objects have files of their own; `KEYWORDS` joins them. Each entry is a pair of functions
(algebra, schema, type) -> records. The negative one gives the values of that type which *fail* the keyword.
"""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from ramet.constrained.json_schema import formats, languages
from ramet.constrained.json_schema.algebra import Algebra, Keyword, Records, Unsupported, reference
from ramet.constrained.json_schema.document import Schema
from ramet.constrained.json_schema.keywords_array import ARRAY_KEYWORDS
from ramet.constrained.json_schema.keywords_object import OBJECT_KEYWORDS, constant_object
from ramet.constrained.json_schema.patterns import pattern_language
from ramet.constrained.json_schema.records import TYPES, Finite, Numbers, Record, Strings, Type, top, type_of
from ramet.constrained.json_schema.shapes import amount, entry, number, schema_list
from ramet.constrained.json_schema.text import Json, identity, to_fraction
from ramet.constrained.json_schema.unevaluated import UNEVALUATED_KEYWORDS
from ramet.constrained.regex.dfa import TooManyStates

_ALL: frozenset[Type] = frozenset(TYPES)
_NUMBER: frozenset[Type] = frozenset({"number"})
_STRING: frozenset[Type] = frozenset({"string"})

# type, enum, const ---------------------------------------------------------------------------------------------------


def _named_types(schema: Schema) -> list[str]:
    names = entry(schema, "type")
    listed = names if isinstance(names, list) else [names]
    known = {*TYPES, "integer"}
    for name in listed:
        if not isinstance(name, str) or name not in known:
            raise Unsupported(schema, "type", f"{name!r} is no JSON type",
                              f"Use one of {', '.join(sorted(known))}.", code="invalid_schema")  # fmt: skip
    return [str(name) for name in listed]


def _type(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    names = _named_types(schema)
    if kind in names:
        return (top(kind),)
    return (Numbers(step=Fraction(1)),) if kind == "number" and "integer" in names else ()


def _not_type(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    names = _named_types(schema)
    if kind in names:
        return ()
    if kind == "number" and "integer" in names:
        return (Numbers(not_steps=frozenset({Fraction(1)})),)
    return (top(kind),)


def _values(schema: Schema, keyword: str) -> list[Json]:
    value = entry(schema, keyword)
    if keyword == "const":
        return [value]
    if not isinstance(value, list):
        raise Unsupported(schema, keyword, "enum must be a list", code="invalid_schema")
    return value


def _one_of_values(keyword: str) -> Callable[[Algebra, Schema, Type], Records]:
    def unfold(algebra: Algebra, schema: Schema, kind: Type) -> Records:
        values = [value for value in _values(schema, keyword) if type_of(value) == kind]
        return (Finite.of(values),) if values else ()

    return unfold


def _none_of_values(keyword: str) -> Callable[[Algebra, Schema, Type], Records]:
    def unfold(algebra: Algebra, schema: Schema, kind: Type) -> Records:
        values = [value for value in _values(schema, keyword) if type_of(value) == kind]
        if not values:
            return (top(kind),)
        match kind:
            case "null":
                return ()
            case "boolean":
                kept = [value for value in (False, True) if value not in values]
                return (Finite.of(kept),) if kept else ()
            case "number":
                return (Numbers(excluded=frozenset(map(to_fraction, values))),)  # type: ignore[arg-type]
            case "string":
                language = languages.texts(tuple(str(value) for value in values))
                return (Strings(frozenset({languages.complement(language)})),)
            case _:
                return _no_composite(algebra, schema, values, kind)

    return unfold


def _no_composite(algebra: Algebra, schema: Schema, values: list[Json], kind: Type) -> Records:
    """Arrays or objects that differ from each value: through the schema that says `equal to the value`."""
    result: Records = (top(kind),)
    for value in values:
        literal = algebra.document.made(constant_object(value), schema)
        result = algebra.meet(result, algebra.unfolded(-literal, kind))
    return result


# numbers and strings -------------------------------------------------------------------------------------------------


def _bound(keyword: str) -> tuple[Callable[[Algebra, Schema, Type], Records], ...]:
    """minimum and its three kin. Draft 4's boolean exclusiveMinimum changes `minimum`; 6 and later have a number."""
    is_low, is_exclusive = keyword in ("minimum", "exclusiveMinimum"), keyword.startswith("exclusive")
    sibling = "exclusiveMinimum" if is_low else "exclusiveMaximum"

    def limit(schema: Schema) -> tuple[Fraction, bool] | None:
        if isinstance(entry(schema, keyword), bool) and is_exclusive:
            return None
        is_open = is_exclusive or (isinstance(schema.value, dict) and schema.value.get(sibling) is True)
        return number(schema, keyword), is_open

    def positive(algebra: Algebra, schema: Schema, kind: Type) -> Records:
        found = limit(schema)
        if found is None:
            return (Numbers(),)
        at, is_open = found
        return (Numbers(low=at, low_open=is_open) if is_low else Numbers(high=at, high_open=is_open),)

    def negative(algebra: Algebra, schema: Schema, kind: Type) -> Records:
        found = limit(schema)
        if found is None:
            return ()
        at, is_open = found
        return (Numbers(high=at, high_open=not is_open) if is_low else Numbers(low=at, low_open=not is_open),)

    return positive, negative


def _step(schema: Schema) -> Fraction:
    step = number(schema, "multipleOf")
    if step <= 0:
        raise Unsupported(schema, "multipleOf", "multipleOf must be greater than 0", code="invalid_schema")
    return step


def _multiple(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Numbers(step=_step(schema)),)


def _no_multiple(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Numbers(not_steps=frozenset({_step(schema)})),)


def _min_length(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Strings(minimum=amount(schema, "minLength")),)


def _below_min_length(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    least = amount(schema, "minLength")
    return (Strings(maximum=least - 1),) if least else ()


def _max_length(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Strings(maximum=amount(schema, "maxLength")),)


def _above_max_length(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Strings(minimum=amount(schema, "maxLength") + 1),)


def _pattern(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return (Strings(frozenset({pattern_language(schema, "pattern", entry(schema, "pattern"))})),)


def _format_name(schema: Schema) -> str | None:
    """The format's name where Ramet enforces it; None for an annotation."""
    name = entry(schema, "format")
    if not isinstance(name, str):
        raise Unsupported(schema, "format", "format must be a string", code="invalid_schema")
    if name in formats.MISSING:
        raise Unsupported(schema, "format", f"the format {name!r} is not implemented",
                          'Leave it out, or use unsupported="declare".')  # fmt: skip
    return name if name in formats.NAMES else None


def _format(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    name = _format_name(schema)
    return (formats.strings(name) if name is not None else Strings(),)


def _not_format(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    name = _format_name(schema)
    if name is None:
        return ()
    maximum = formats.strings(name).maximum
    too_long = () if maximum is None else (Strings(minimum=maximum + 1),)
    return (Strings(frozenset({formats.certain_failures(name)})), *too_long)


def _not_pattern(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    language = pattern_language(schema, "pattern", entry(schema, "pattern"))
    try:
        return (Strings(frozenset({languages.complement(language)})),)
    except TooManyStates as problem:
        raise Unsupported(schema, "pattern", str(problem), code="too_complex") from None


# combinators ---------------------------------------------------------------------------------------------------------


def _ref(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return algebra.unfolded(_target(algebra, schema, "$ref"), kind)


def _not_ref(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return algebra.unfolded(-_target(algebra, schema, "$ref"), kind)


def _target(algebra: Algebra, schema: Schema, keyword: str) -> int:
    return algebra.document.resolve(schema, reference(schema, keyword), keyword)


def _dynamic(keyword: str, sign: int) -> Callable[[Algebra, Schema, Type], Records]:
    """A dynamic reference is a plain one as long as no other resource could redirect it."""

    def unfold(algebra: Algebra, schema: Schema, kind: Type) -> Records:
        if not algebra.document.is_static(reference(schema, keyword)):
            raise Unsupported(schema, keyword, "the target depends on the path by which it was reached",
                              "Use $ref.")  # fmt: skip
        return algebra.unfolded(sign * _target(algebra, schema, keyword), kind)

    return unfold


def _all(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    result: Records = (top(kind),)
    for literal in schema_list(algebra, schema, "allOf"):
        result = algebra.meet(result, algebra.unfolded(literal, kind))
    return result


def _not_all(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    literals = schema_list(algebra, schema, "allOf")
    return algebra.union(record for literal in literals for record in algebra.unfolded(-literal, kind))


def _any(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    literals = schema_list(algebra, schema, "anyOf")
    return algebra.union(record for literal in literals for record in algebra.unfolded(literal, kind))


def _not_any(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    result: Records = (top(kind),)
    for literal in schema_list(algebra, schema, "anyOf"):
        result = algebra.meet(result, algebra.unfolded(-literal, kind))
    return result


def _one(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    """Each branch minus the others; what is disjoint already needs no minus."""
    literals = schema_list(algebra, schema, "oneOf")
    branches = [algebra.unfolded(literal, kind) for literal in literals]
    if all(isinstance(record, Finite) for branch in branches for record in branch):
        return _in_one_only([record for branch in branches for record in branch if isinstance(record, Finite)])
    if kind == "string" and all(_is_short(record) for branch in branches for record in branch):
        return _text_of_one_only(schema, branches)
    out: list[Record] = []
    for index, literal in enumerate(literals):
        rest: Records = algebra.unfolded(literal, kind)
        for other_index, other in enumerate(literals):
            if other_index != index and rest:
                rest = _minus(algebra, rest, other, kind)
        out.extend(rest)
    return algebra.union(out)


def _in_one_only(branches: list[Finite]) -> Records:
    """Of finite branches (one record each, or none): the values that occur once."""
    counts = Counter(each for branch in branches for each in branch.identities)
    kept = Finite.of(v for branch in branches for v in branch.values if counts[identity(v)] == 1)
    return (kept,) if kept.values else ()


def _is_short(record: Record) -> bool:
    """Whether the record's lengths are absent or small, so that they may be multiplied into its automaton."""
    return isinstance(record, Finite) or (
        isinstance(record, Strings) and max(record.minimum, record.maximum or 0) <= 64
    )


def _text_of_one_only(schema: Schema, branches: list[Records]) -> Records:
    """Of branches that are languages: the texts in exactly one, by carrying along what none and what one has."""
    try:
        none, one = languages.whole(Strings()), languages.any_of(frozenset())
        for branch in branches:
            here = languages.any_of(frozenset(languages.whole(languages.as_strings(record)) for record in branch))
            one = languages.any_of(frozenset({languages.without(one, here), languages.both(none, here)}))
            none = languages.without(none, here)
    except TooManyStates as problem:
        raise Unsupported(schema, "oneOf", str(problem), code="too_complex") from None
    return () if one.is_empty else (Strings(frozenset({one})),)


def _minus(algebra: Algebra, records: Records, literal: int, kind: Type) -> Records:
    apart = [record for record in records if not algebra.meet((record,), algebra.unfolded(literal, kind))]
    meeting = tuple(record for record in records if record not in apart)
    if not meeting:
        return records
    return algebra.union([*apart, *algebra.meet(meeting, algebra.unfolded(-literal, kind))])


def _not_one(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    literals = schema_list(algebra, schema, "oneOf")
    none: Records = (top(kind),)
    for literal in literals:
        none = algebra.meet(none, algebra.unfolded(-literal, kind))
    pairs = [
        record
        for index, first in enumerate(literals)
        for second in literals[index + 1 :]
        for record in algebra.meet(algebra.unfolded(first, kind), algebra.unfolded(second, kind))
    ]
    return algebra.union([*none, *pairs])


def _not(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return algebra.unfolded(-algebra.document.child(schema, "not"), kind)


def _not_not(algebra: Algebra, schema: Schema, kind: Type) -> Records:
    return algebra.unfolded(algebra.document.child(schema, "not"), kind)


def _if(sign: int) -> Callable[[Algebra, Schema, Type], Records]:
    def unfold(algebra: Algebra, schema: Schema, kind: Type) -> Records:
        condition = algebra.document.child(schema, "if")
        parts: list[Record] = []
        for branch, test in (("then", condition), ("else", -condition)):
            if _plain(branch, schema):
                outcome = sign * algebra.document.child(schema, branch)
            else:
                outcome = sign * algebra.document.true
            parts.extend(algebra.meet(algebra.unfolded(test, kind), algebra.unfolded(outcome, kind)))
        return algebra.union(parts)

    return unfold


def _plain(branch: str, schema: Schema) -> bool:
    return isinstance(schema.value, dict) and branch in schema.value


def _pair(
    kinds: frozenset[Type], pair: tuple[Callable[[Algebra, Schema, Type], Records], ...], rank: int = 1
) -> Keyword:
    return Keyword(kinds, pair[0], pair[1], rank)


KEYWORDS: dict[str, Keyword] = {
    "type": Keyword(_ALL, _type, _not_type, 0),
    "enum": Keyword(_ALL, _one_of_values("enum"), _none_of_values("enum"), 0),
    "const": Keyword(_ALL, _one_of_values("const"), _none_of_values("const"), 0),
    **{name: _pair(_NUMBER, _bound(name))
       for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
    "multipleOf": Keyword(_NUMBER, _multiple, _no_multiple),
    "minLength": Keyword(_STRING, _min_length, _below_min_length),
    "maxLength": Keyword(_STRING, _max_length, _above_max_length),
    "pattern": Keyword(_STRING, _pattern, _not_pattern),
    "format": Keyword(_STRING, _format, _not_format),
    **ARRAY_KEYWORDS,
    **OBJECT_KEYWORDS,
    "$ref": Keyword(_ALL, _ref, _not_ref, 2),
    "$dynamicRef": Keyword(_ALL, _dynamic("$dynamicRef", 1), _dynamic("$dynamicRef", -1), 2),
    "$recursiveRef": Keyword(_ALL, _dynamic("$recursiveRef", 1), _dynamic("$recursiveRef", -1), 2),
    "allOf": Keyword(_ALL, _all, _not_all, 2),
    "if": Keyword(_ALL, _if(1), _if(-1), 3),
    "not": Keyword(_ALL, _not, _not_not, 3),
    "anyOf": Keyword(_ALL, _any, _not_any, 4),
    "oneOf": Keyword(_ALL, _one, _not_one, 5),
    **UNEVALUATED_KEYWORDS,
}  # fmt: skip
"""Every keyword that asserts. A name not here is an annotation."""
