"""Schema text -> values, strictly: what is ambiguous or hostile in the text is refused with its JSON Pointer.

Knows JSON, not JSON Schema. Integers stay `int`, other numbers become `Decimal` (exact, and their spelling survives),
objects keep the order of the text. Refused: a key twice in one object, NaN and Infinity, lone surrogates, numbers of
absurd size, texts over 1 MiB, nesting over 300, more than 50,000 values.
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import NoReturn, TypeAlias

from ramet.runtime.errors import GrammarRefused

Json: TypeAlias = "bool | int | Decimal | float | str | list[Json] | dict[str, Json] | None"
"""A parsed JSON value. Floats never come from `parse`; values handed in by callers may hold them."""

MAX_BYTES = 1 << 20
MAX_DEPTH = 300
"""Of values in each other; a schema inside `properties` of a schema is two deeper."""
MAX_VALUES = 50_000
MAX_EXPONENT = 400
"""Of a number in a schema, as a power of ten: 1e400 is past any float, and still cheap to compute with."""
MAX_DIGITS = 1_000


class _Constant:
    """NaN or an infinity, where the text has one."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Twice:
    """An object that names a key twice."""

    def __init__(self, key: str) -> None:
        self.key = key


def parse(text: str) -> Json:
    """The value of a JSON text. Raises GrammarRefused where the module docstring says so."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        refuse(f"at most {MAX_BYTES} bytes of schema", len(text), "", "Split the schema.", code="limit_bytes")
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_float=_number, parse_int=_integer, parse_constant=_Constant
        )
    except RecursionError:
        refuse(f"nesting of at most {MAX_DEPTH}", "a deeper text", "", "Flatten the schema.", code="limit_depth")
    except ValueError as error:
        refuse("a JSON text", str(error), "", "The schema must be valid JSON.", code="invalid_json")
    _check(value)
    return value  # type: ignore[no-any-return]


def refuse(expected: str, got: object, pointer: str, hint: str = "", *, code: str = "grammar_refused") -> NoReturn:
    """Raise GrammarRefused at a pointer; the root is shown as `#`."""
    raise GrammarRefused(expected=expected, got=got, at=f"#{pointer}", hint=hint, code=code)


def escape(name: str) -> str:
    """One reference token of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def to_fraction(number: int | Decimal | float) -> Fraction:
    """The exact value of a JSON number; of a float, the decimal that it is written as."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def is_number(value: object) -> bool:
    """Whether the value is a JSON number (a bool is not)."""
    return isinstance(value, (int, Decimal, float)) and not isinstance(value, bool)


def identity(value: Json) -> object:
    """A hashable key, equal for values that JSON Schema holds equal: 1 == 1.0, but true != 1; order of keys is free."""
    match value:
        case None | bool():
            return (type(value).__name__, value)
        case int() | Decimal() | float():
            return ("number", to_fraction(value))
        case str():
            return value
        case list():
            return ("array", tuple(identity(item) for item in value))
        case _:
            return ("object", frozenset((key, identity(item)) for key, item in value.items()))


def _object(pairs: list[tuple[str, object]]) -> object:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return _Twice(key)
        seen.add(key)
    raise AssertionError("a shorter dict has a key twice")


def _integer(text: str) -> object:
    return int(text) if len(text) <= MAX_DIGITS else _Constant(f"a number of {len(text)} digits")


def _number(text: str) -> object:
    if len(text) > MAX_DIGITS:
        return _Constant(f"a number of {len(text)} digits")
    number = Decimal(text)
    return number if number == 0 or abs(number.adjusted()) <= MAX_EXPONENT else _Constant(text)


def _check(root: object) -> None:
    for count, (value, pointer, depth) in enumerate(_walk(root)):
        if count > MAX_VALUES:
            refuse(f"at most {MAX_VALUES} values in a schema", "more", "", "Split the schema.", code="limit_nodes")
        if depth > MAX_DEPTH:
            refuse(f"nesting of at most {MAX_DEPTH}", "deeper", pointer, "Flatten the schema.", code="limit_depth")
        match value:
            case _Constant():
                refuse("a finite JSON number of ordinary size", value.name, pointer, code="invalid_json")
            case _Twice():
                refuse("each key once", value.key, f"{pointer}/{escape(value.key)}", code="invalid_json")
            case str():
                _check_text(value, pointer)
            case dict():
                for key in value:
                    _check_text(key, pointer)


def _check_text(text: str, pointer: str) -> None:
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        refuse("Unicode text", "a lone surrogate", pointer.encode("utf-8", "replace").decode(), code="invalid_json")


def _walk(root: object) -> Iterator[tuple[object, str, int]]:
    todo: list[tuple[object, str, int]] = [(root, "", 0)]
    while todo:
        value, pointer, depth = todo.pop()
        yield value, pointer, depth
        if isinstance(value, dict):
            todo.extend((item, f"{pointer}/{escape(key)}", depth + 1) for key, item in value.items())
        elif isinstance(value, list):
            todo.extend((item, f"{pointer}/{index}", depth + 1) for index, item in enumerate(value))
