"""Reading keyword values of the right shape; a wrong one is refused with the keyword's pointer."""

from fractions import Fraction

from ramet.constrained.json_schema.algebra import Algebra, Unsupported
from ramet.constrained.json_schema.document import Literal_, Schema
from ramet.constrained.json_schema.text import Json, is_number, to_fraction

MAX_AMOUNT = 10**9
"""Of a length or count; a greater minimum could never be met, a greater maximum never be passed."""


def entry(schema: Schema, keyword: str) -> Json:
    """The keyword's value."""
    assert isinstance(schema.value, dict)
    return schema.value[keyword]


def number(schema: Schema, keyword: str) -> Fraction:
    """A number, exactly."""
    value = entry(schema, keyword)
    if not is_number(value):
        raise Unsupported(schema, keyword, f"{keyword} must be a number", code="invalid_schema")
    return to_fraction(value)  # type: ignore[arg-type]


def amount(schema: Schema, keyword: str) -> int:
    """A length or a count: a whole number of at least 0 (2.0 is one)."""
    value = number(schema, keyword)
    if value.denominator != 1 or value < 0:
        raise Unsupported(schema, keyword, f"{keyword} must be a whole number of at least 0", code="invalid_schema")
    return min(int(value), MAX_AMOUNT)


def texts(schema: Schema, keyword: str, value: Json) -> list[str]:
    """A list of strings."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Unsupported(schema, keyword, f"{keyword} must hold a list of strings", code="invalid_schema")
    return [str(item) for item in value]


def mapping(schema: Schema, keyword: str) -> dict[str, Json]:
    """An object."""
    value = entry(schema, keyword)
    if not isinstance(value, dict):
        raise Unsupported(schema, keyword, f"{keyword} must be an object", code="invalid_schema")
    return value


def schema_list(algebra: Algebra, schema: Schema, keyword: str) -> list[Literal_]:
    """A non-empty list of schemas, as positive literals."""
    value = entry(schema, keyword)
    if not isinstance(value, list) or not value:
        raise Unsupported(schema, keyword, f"{keyword} must be a non-empty list", code="invalid_schema")
    return [algebra.document.child(schema, keyword, index) for index in range(len(value))]
