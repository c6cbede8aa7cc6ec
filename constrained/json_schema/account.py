"""The ledger of a schema: a walk over every keyword that the root can reach, and what became of it.

Reads the document and nothing of the algebra: whether a keyword is exact is a property of the keyword and its value
(and of the few defaults that hold for the whole grammar), so that the account can be checked by reading.
"""

from collections.abc import Iterator
from decimal import Decimal

from ramet.constrained.json_schema import formats
from ramet.constrained.json_schema.document import ANNOTATIONS, ASSERTIONS, LISTS, MAPS, SINGLE, Document, Schema
from ramet.constrained.json_schema.keywords import KEYWORDS
from ramet.constrained.json_schema.text import Json, escape
from ramet.constrained.ledger import Ledger, LedgerEntry, Status
from ramet.constrained.spec import JsonSchema

_COMPANIONS = frozenset({"then", "else", "minContains", "maxContains"})
"""Read by the keyword they belong to."""
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})


def account(document: Document, spec: JsonSchema, deferred: dict[tuple[int, str], str]) -> Ledger:
    """What is enforced, keyword by keyword. `deferred` holds reasons by (schema number, keyword)."""
    ledger = Ledger(_defaults(spec))
    todo, done = [document.root], set()
    while todo:
        literal = todo.pop(0)
        if literal in done:
            continue
        done.add(literal)
        schema = document.schema(literal)
        if isinstance(schema.value, dict):
            for entry in _entries(schema, deferred):
                ledger.add(entry)
            todo.extend(_children(document, schema))
    return ledger


def _defaults(spec: JsonSchema) -> Iterator[LedgerEntry]:
    spaces = {
        "compact": "no whitespace",
        "bounded": "whitespace between tokens is nothing, one space, or a newline and at most 20 blanks",
        "exact": "any JSON whitespace between tokens",
    }[spec.whitespace]
    order = "keys in any order" if spec.any_order else "declared keys in the order of the schema, other keys after them"
    reason = (
        f"{spaces}, none around the value; {order}; numbers of at most 24 digits and exponents of 3, unless a bound "
        "needs more; text under a pattern or enum is written raw where JSON allows it; repeated undeclared keys are "
        "not prevented, but never counted twice for minProperties"
    )
    yield LedgerEntry(pointer="", keyword="<defaults>", status="stricter", reason=reason)


def _entries(schema: Schema, deferred: dict[tuple[int, str], str]) -> Iterator[LedgerEntry]:
    assert isinstance(schema.value, dict)
    overridden = "$ref" in schema.value and schema.draft <= 7
    for keyword, value in schema.value.items():
        pointer = f"{schema.pointer}/{escape(keyword)}"
        reason = deferred.get((schema.number, keyword))
        if reason is not None:
            status: Status = "deferred"
        elif overridden and keyword in ASSERTIONS and keyword != "$ref":
            status, reason = "exact", f"ignored: draft {schema.draft} reads nothing beside $ref"
        else:
            status, reason = _judged(schema, keyword, value)
        yield LedgerEntry(pointer=pointer, keyword=keyword, status=status, reason=reason)


def _judged(schema: Schema, keyword: str, value: Json) -> tuple[Status, str]:
    if keyword not in KEYWORDS and keyword not in _COMPANIONS:
        known = keyword in ANNOTATIONS
        return "exact", "" if known else "not a keyword of the specification: an annotation"
    if not _is_readable(keyword, value):
        return "exact", "malformed, and without effect here"
    match keyword:
        case "type" if "integer" in (value if isinstance(value, list) else [value]):
            return "stricter", "integers are written without fraction and exponent"
        case "format" if value not in formats.NAMES:
            return "exact", f"the specification does not define {value!r}: an annotation"
        case "format" if formats.stricter(str(value)):
            return "stricter", formats.stricter(str(value))
        case "enum" | "const":
            return _constant(value if keyword == "enum" else [value])
        case "minProperties" if _is_more_than_one(value) and _has_free_keys(schema):
            return "stricter", "undeclared keys that a hash of their text does not tell apart count once"
        case "multipleOf":
            return "stricter", "no exponents; multiples of whole numbers are written without fraction"
        case _ if keyword in _BOUNDS and value != 0 and not isinstance(value, bool):
            return "stricter", "no exponents"
        case _:
            return "exact", ""


def _is_readable(keyword: str, value: Json) -> bool:
    """Whether a value has the shape that is looked into below. What has an effect was refused before, if malformed."""
    match keyword:
        case "format":
            return isinstance(value, str)
        case "enum":
            return isinstance(value, list)
        case _:
            return keyword != "type" or isinstance(value, (str, list))


def _is_more_than_one(value: Json) -> bool:
    return isinstance(value, int | float | Decimal) and value > 1


def _has_free_keys(schema: Schema) -> bool:
    assert isinstance(schema.value, dict)
    return schema.value.get("additionalProperties") is not False or "patternProperties" in schema.value


def _constant(values: Json) -> tuple[Status, str]:
    assert isinstance(values, list)
    if any(isinstance(value, (list, dict)) for value in values):
        return "stricter", "members of objects in the order of the schema; numbers and texts in one spelling each"
    if any(not isinstance(value, (str, bool)) and value is not None for value in values):
        return "stricter", "numbers in plain spelling and in the schema's"
    return "exact", ""


def _children(document: Document, schema: Schema) -> Iterator[int]:
    """The subschemas that take part in what the schema asserts."""
    assert isinstance(schema.value, dict)
    value = schema.value
    if isinstance(value.get("$ref"), str):
        yield document.resolve(schema, str(value["$ref"]))
        if schema.draft <= 7:
            return
    for keyword, item in value.items():
        if keyword in LISTS and isinstance(item, list):
            yield from (document.child(schema, keyword, index) for index in range(len(item)))
        elif keyword in MAPS and isinstance(item, dict):
            yield from (document.child(schema, keyword, name) for name, each in item.items()
                        if isinstance(each, (dict, bool)))  # fmt: skip
        elif keyword in SINGLE and isinstance(item, (dict, bool)):
            yield document.child(schema, keyword)
