"""Does a value satisfy a schema? The definition of every keyword, evaluated directly on a finished value.

Used at compile time (an enum's values against its siblings) and after a generation (keywords that were deferred). It
shares the document with the automata and nothing of the algebra, so it is a second opinion on both. Exact: numbers are
fractions, equality is JSON Schema's. Patterns and formats run on automata, never on a backtracking engine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ramet.constrained.json_schema import formats
from ramet.constrained.json_schema.document import Document, Literal_, Schema
from ramet.constrained.json_schema.text import Json, escape, identity, is_number, refuse, to_fraction
from ramet.constrained.regex.language import language
from ramet.runtime.errors import GrammarRefused


@dataclass(frozen=True, slots=True)
class Failure:
    """A keyword that a value fails: the innermost one, unless it stands in a choice (`anyOf`, `oneOf`, `not`,
    `contains`), which fails as a whole."""

    pointer: str
    """Of the keyword in the schema, by the way that led to it; behind a `$ref` from where that points."""
    at: str
    """Of the offending part in the value."""


@dataclass(slots=True)
class _Outcome:
    """What a subschema found: its failures and what it has evaluated of the value."""

    pointer: str
    """Of the subschema."""
    failures: list[Failure] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    items: set[int] = field(default_factory=set)

    @property
    def passes(self) -> bool:
        return not self.failures

    def take(self, other: "_Outcome") -> None:
        """The annotations of a subschema that passed."""
        if other.passes:
            self.keys |= other.keys
            self.items |= other.items


def satisfies(document: Document, literal: Literal_, value: Json) -> bool:
    """Whether the value satisfies the schema of a positive literal."""
    return _Validation(document).of(literal, value, "").passes


def failures(document: Document, value: Json) -> list[Failure]:
    """What the value fails of the whole document; empty for a valid value."""
    return _Validation(document).of(document.root, value, "").failures


class _Validation:
    def __init__(self, document: Document) -> None:
        self.document = document
        self._open: set[tuple[int, int]] = set()

    def of(self, literal: Literal_, value: Json, at: str, pointer: str | None = None) -> _Outcome:
        """`pointer`: the way to this schema; None: the first place that says the same."""
        schema = self.document.schema(literal)
        outcome = _Outcome(schema.pointer if pointer is None else pointer)
        if isinstance(schema.value, bool):
            if not schema.value:
                outcome.failures.append(Failure(outcome.pointer, at))
            return outcome
        key = (schema.number, id(value))
        if key in self._open:  # a reference to itself: adds nothing (compilation refuses such schemas)
            return outcome
        self._open.add(key)
        try:
            self._keywords(schema, value, at, outcome)
        finally:
            self._open.discard(key)
        return outcome

    def _keywords(self, schema: Schema, value: Json, at: str, outcome: _Outcome) -> None:
        assert isinstance(schema.value, dict)
        names = list(schema.value)
        if "$ref" in schema.value and schema.draft <= 7:
            names = ["$ref"]
        last = ("unevaluatedProperties", "unevaluatedItems")
        for name in sorted(names, key=lambda n: n in last):
            check = _CHECKS.get(name)
            try:
                holds = check is None or check(self, schema, value, at, outcome)
            except (TypeError, ValueError, AssertionError):
                refuse("a valid JSON Schema", schema.value[name], f"{schema.pointer}/{name}", code="invalid_schema")
            if not holds:
                outcome.failures.append(Failure(f"{outcome.pointer}/{name}", at))

    def child(self, schema: Schema, outcome: _Outcome, value: Json, at: str, *path: str | int) -> _Outcome:
        """The outcome of the subschema at `path` within `schema`."""
        pointer = outcome.pointer + "".join(f"/{escape(str(part))}" for part in path)
        return self.of(self.document.child(schema, *path), value, at, pointer)

    def passes(self, literal: Literal_, value: Json) -> bool:
        return self.of(literal, value, "").passes


_Check = Callable[[_Validation, Schema, Json, str, _Outcome], bool]


def _scalar(test: Callable[[Json, Json], bool], keyword: str, applies: Callable[[Json], bool]) -> _Check:
    def check(validation: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
        assert isinstance(schema.value, dict)
        return not applies(value) or test(value, schema.value[keyword])

    return check


def _is_string(value: Json) -> bool:
    return isinstance(value, str)


def _is_list(value: Json) -> bool:
    return isinstance(value, list)


def _is_object(value: Json) -> bool:
    return isinstance(value, dict)


def _anything(value: Json) -> bool:
    return True


def _type(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    assert isinstance(schema.value, dict)
    named = schema.value["type"]
    return any(_has_type(value, name, schema.draft) for name in (named if isinstance(named, list) else [named]))


def _has_type(value: Json, name: Json, draft: int) -> bool:
    match name:
        case "integer" if draft == 4:
            return isinstance(value, int) and not isinstance(value, bool)  # 1.0 became an integer in draft 6
        case "integer":
            return is_number(value) and to_fraction(value).denominator == 1  # type: ignore[arg-type]
        case "number":
            return is_number(value)
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case _:
            return name == "object" and isinstance(value, dict)


def _found(value: Json, pattern: Json) -> bool:
    return language(str(pattern)).matches(str(value))


def _has_format(value: Json, name: Json) -> bool:
    if name in formats.MISSING:
        raise GrammarRefused(expected="a format that can be checked", got=name, at="#", code="unsupported")
    return name not in formats.NAMES or formats.accepts(str(name), str(value))


def _bound(keyword: str) -> _Check:
    sibling = "exclusiveMinimum" if keyword == "minimum" else "exclusiveMaximum"

    def check(validation: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
        assert isinstance(schema.value, dict)
        limit = schema.value[keyword]
        if not is_number(value) or isinstance(limit, bool):
            return True
        number, bound = to_fraction(value), to_fraction(limit)  # type: ignore[arg-type]
        if keyword.startswith("exclusive") or schema.value.get(sibling) is True:
            return number > bound if keyword.endswith("inimum") else number < bound
        return number >= bound if keyword == "minimum" else number <= bound

    return check


def _unique(values: Json, wanted: Json) -> bool:
    assert isinstance(values, list)
    return wanted is not True or len({identity(value) for value in values}) == len(values)


def _all_of(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    for index in range(_length(schema, "allOf")):
        _must(v.child(schema, outcome, value, at, "allOf", index), outcome, in_place=True)
    return True


def _any_of(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    return _num_passed(v, schema, value, at, outcome, "anyOf") > 0


def _one_of(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    return _num_passed(v, schema, value, at, outcome, "oneOf") == 1


def _num_passed(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome, keyword: str) -> int:
    """Every member is looked at, for each that passes leaves notes."""
    found = [v.child(schema, outcome, value, at, keyword, index) for index in range(_length(schema, keyword))]
    for inner in found:
        outcome.take(inner)
    return sum(inner.passes for inner in found)


def _not(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    return not v.passes(v.document.child(schema, "not"), value)


def _if(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    assert isinstance(schema.value, dict)
    condition = v.child(schema, outcome, value, at, "if")
    outcome.take(condition)
    branch = "then" if condition.passes else "else"
    if branch in schema.value:
        _must(v.child(schema, outcome, value, at, branch), outcome, in_place=True)
    return True


def _ref(keyword: str) -> _Check:
    def check(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
        assert isinstance(schema.value, dict)
        ref = str(schema.value[keyword])
        if keyword != "$ref" and not v.document.is_static(ref):
            raise GrammarRefused(
                expected="a reference that leads to one place", got=ref, at=f"#{schema.pointer}/{keyword}"
            )
        _must(v.of(v.document.resolve(schema, ref, keyword), value, at), outcome, in_place=True)
        return True

    return check


def _must(inner: _Outcome, outcome: _Outcome, *, in_place: bool = False) -> None:
    """What a subschema fails is what its keyword fails. `in_place`: of the same value, so what it evaluated counts."""
    outcome.failures += inner.failures
    if in_place:
        outcome.take(inner)


def _length(schema: Schema, keyword: str) -> int:
    assert isinstance(schema.value, dict)
    listed = schema.value[keyword]
    assert isinstance(listed, list)
    return len(listed)


def _rest_of_items(
    v: _Validation, schema: Schema, values: list[Json], at: str, outcome: _Outcome, keyword: str, start: int
) -> bool:
    outcome.items |= set(range(start, len(values)))
    for index in range(start, len(values)):
        _must(v.child(schema, outcome, values[index], f"{at}/{index}", keyword), outcome)
    return True


def _prefix(keyword: str) -> _Check:
    def check(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
        if not isinstance(value, list):
            return True
        num = min(_length(schema, keyword), len(value))
        outcome.items |= set(range(num))
        for index in range(num):
            _must(v.child(schema, outcome, value[index], f"{at}/{index}", keyword, index), outcome)
        return True

    return check


def _items(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    assert isinstance(schema.value, dict)
    if not isinstance(value, list):
        return True
    if isinstance(schema.value["items"], list):
        return _prefix("items")(v, schema, value, at, outcome)
    prefix = schema.value.get("prefixItems")
    return _rest_of_items(v, schema, value, at, outcome, "items", len(prefix) if isinstance(prefix, list) else 0)


def _additional_items(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    assert isinstance(schema.value, dict)
    prefix = schema.value.get("items")
    if not isinstance(value, list) or not isinstance(prefix, list) or "prefixItems" in schema.value:
        return True
    return _rest_of_items(v, schema, value, at, outcome, "additionalItems", len(prefix))


def _contains(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    assert isinstance(schema.value, dict)
    if not isinstance(value, list):
        return True
    literal = v.document.child(schema, "contains")
    found = {index for index, item in enumerate(value) if v.passes(literal, item)}
    if schema.draft >= 2020:
        outcome.items |= found
    least, most = schema.value.get("minContains", 1), schema.value.get("maxContains", len(value))
    return len(found) >= to_fraction(least) and len(found) <= to_fraction(most)  # type: ignore[arg-type]


def _properties(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    assert isinstance(schema.value, dict)
    declared = schema.value["properties"]
    if not isinstance(value, dict) or not isinstance(declared, dict):
        return True
    named = [name for name in declared if name in value]
    outcome.keys |= set(named)
    for name in named:
        _must(v.child(schema, outcome, value[name], _member(at, name), "properties", name), outcome)
    return True


def _member(at: str, name: str) -> str:
    return f"{at}/{escape(name)}"


def _patterns(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    assert isinstance(schema.value, dict)
    patterns = schema.value["patternProperties"]
    if not isinstance(value, dict) or not isinstance(patterns, dict):
        return True
    for pattern in patterns:
        matching = [name for name in value if _found(name, pattern)]
        outcome.keys |= set(matching)
        for name in matching:
            _must(v.child(schema, outcome, value[name], _member(at, name), "patternProperties", pattern), outcome)
    return True


def _additional(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    assert isinstance(schema.value, dict)
    if not isinstance(value, dict):
        return True
    declared, patterns = schema.value.get("properties", {}), schema.value.get("patternProperties", {})
    assert isinstance(declared, dict)
    assert isinstance(patterns, dict)
    left = [name for name in value if name not in declared and not any(_found(name, each) for each in patterns)]
    return _rest_of_members(v, schema, value, at, outcome, "additionalProperties", left)


def _rest_of_members(
    v: _Validation, schema: Schema, value: dict[str, Json], at: str, outcome: _Outcome, keyword: str, left: list[str]
) -> bool:
    outcome.keys |= set(left)
    for name in left:
        _must(v.child(schema, outcome, value[name], _member(at, name), keyword), outcome)
    return True


def _names(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    for name in value if isinstance(value, dict) else ():
        _must(v.child(schema, outcome, name, _member(at, name), "propertyNames"), outcome)
    return True


def _dependent(keyword: str) -> _Check:
    def check(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
        assert isinstance(schema.value, dict)
        entries = schema.value[keyword]
        if not isinstance(value, dict) or not isinstance(entries, dict):
            return True
        holds = True
        for name, needed in entries.items():
            if name in value:
                if isinstance(needed, list):
                    holds &= all(each in value for each in needed)
                else:
                    _must(v.child(schema, outcome, value, at, keyword, name), outcome, in_place=True)
        return holds

    return check


def _unevaluated_properties(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    if not isinstance(value, dict):
        return True
    left = [name for name in value if name not in outcome.keys]
    return _rest_of_members(v, schema, value, at, outcome, "unevaluatedProperties", left)


def _unevaluated_items(v: _Validation, schema: Schema, value: Json, at: str, outcome: _Outcome) -> bool:
    if not isinstance(value, list):
        return True
    left = [index for index in range(len(value)) if index not in outcome.items]
    outcome.items |= set(left)
    for index in left:
        _must(v.child(schema, outcome, value[index], f"{at}/{index}", "unevaluatedItems"), outcome)
    return True


def _count(value: Json) -> int:
    assert isinstance(value, (str, list, dict))
    return len(value)


def _at_least(value: Json, limit: Json) -> bool:
    return _count(value) >= to_fraction(limit)  # type: ignore[arg-type]


def _at_most(value: Json, limit: Json) -> bool:
    return _count(value) <= to_fraction(limit)  # type: ignore[arg-type]


def _equals_any(value: Json, values: Json) -> bool:
    assert isinstance(values, list)
    return identity(value) in {identity(each) for each in values}


_CHECKS: dict[str, _Check] = {
    "type": _type,
    "enum": _scalar(_equals_any, "enum", _anything),
    "const": _scalar(lambda value, const: identity(value) == identity(const), "const", _anything),
    **{name: _bound(name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
    "multipleOf": _scalar(
        lambda value, step: (to_fraction(value) / to_fraction(step)).denominator == 1,  # type: ignore[arg-type]
        "multipleOf",
        is_number,
    ),
    "minLength": _scalar(_at_least, "minLength", _is_string),
    "maxLength": _scalar(_at_most, "maxLength", _is_string),
    "pattern": _scalar(_found, "pattern", _is_string),
    "format": _scalar(_has_format, "format", _is_string),
    "minItems": _scalar(_at_least, "minItems", _is_list),
    "maxItems": _scalar(_at_most, "maxItems", _is_list),
    "uniqueItems": _scalar(_unique, "uniqueItems", _is_list),
    "prefixItems": _prefix("prefixItems"),
    "items": _items,
    "additionalItems": _additional_items,
    "contains": _contains,
    "properties": _properties,
    "patternProperties": _patterns,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "required": _scalar(lambda value, names: all(n in value for n in names), "required", _is_object),  # type: ignore[operator,union-attr]
    "minProperties": _scalar(_at_least, "minProperties", _is_object),
    "maxProperties": _scalar(_at_most, "maxProperties", _is_object),
    "dependentRequired": _dependent("dependentRequired"),
    "dependentSchemas": _dependent("dependentSchemas"),
    "dependencies": _dependent("dependencies"),
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "$ref": _ref("$ref"),
    "$dynamicRef": _ref("$dynamicRef"),
    "$recursiveRef": _ref("$recursiveRef"),
    "unevaluatedProperties": _unevaluated_properties,
    "unevaluatedItems": _unevaluated_items,
}
