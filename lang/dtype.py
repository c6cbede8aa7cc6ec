"""Python types, schemas and terms -> a constraint on the output, and the way back from text to value.

Knows no engine: it makes the specs of `constrained/spec.py`. Types that msgspec knows (dataclass, TypedDict,
NamedTuple, Struct, Enum, Literal, containers) and pydantic models become JSON Schemas; int, float and bool are written
as Python writes them, str as a JSON string.
"""

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from ramet.constrained.spec import Choice, JsonSchema, Lark, Regex, Spec
from ramet.constrained.terms import spec_of
from ramet.lang.calls import call_spec
from ramet.lang.tools import by_name
from ramet.runtime.errors import BadRequest

Decoder = Callable[[str], object]
"""Text of an output -> its value."""
_INTEGER, _FLOAT = r"-?(0|[1-9][0-9]{0,18})", r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,17})?"
_NAMES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str, "string": str}
_SPECS = Spec.__args__


def constraint_of(options: Mapping[str, Any]) -> tuple[Spec | None, Decoder]:
    """The one constraint among `options`, if any, and the decoder of what it lets through."""
    if (dtype := options.get("dtype")) is not None:
        return of_type(dtype)
    if (pattern := options.get("regex")) is not None:
        return of_regex(pattern), str
    if (schema := options.get("json_schema")) is not None:
        return of_schema(schema), str
    if (grammar := options.get("grammar")) is not None:
        return of_grammar(grammar), str
    if tools := options.get("tools"):
        schemas = {name: tool.parameters for name, tool in by_name(tools).items()}
        return call_spec(schemas, options.get("tool_choice", "auto")), str
    return None, str


def of_type(dtype: Any) -> tuple[Spec, Decoder]:
    """A type, its name, or anything that `of_grammar` takes."""
    dtype = _NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if dtype is int:
        return Regex(pattern=_INTEGER), int
    if dtype is float:
        return Regex(pattern=_FLOAT), float
    if dtype is bool:
        return Choice(choices=("True", "False")), lambda text: text == "True"
    if (texts := _closed_set(dtype)) is not None:
        return Choice(choices=tuple(texts)), lambda text: texts[text]
    if isinstance(dtype, _SPECS) or _is_outlines(dtype):
        return of_grammar(dtype), str
    if isinstance(dtype, str):
        raise BadRequest(expected=f"a type or one of {sorted(_NAMES)}", got=dtype, at="$.dtype")
    if isinstance(dtype, list | tuple | set | dict):
        hint = "For one of several texts: choices=[...] or dtype=Literal[...]. For a schema: json_schema=."
        raise BadRequest(expected="a type", got=dtype, at="$.dtype", hint=hint)
    return JsonSchema(schema=_schema_text(dtype), whitespace="compact" if dtype is str else "bounded"), _json_decoder(
        dtype
    )


def _closed_set(dtype: Any) -> dict[str, object] | None:
    """Enum and Literal whose values are all texts or all numbers are written plainly, without quotes."""
    if isinstance(dtype, type) and issubclass(dtype, enum.Enum):
        return {str(member.value): member for member in dtype}
    if get_origin(dtype) is Literal:
        return {str(value): value for value in get_args(dtype)}
    return None


def of_regex(pattern: str) -> Regex:
    if not isinstance(pattern, str):
        raise BadRequest(expected="a pattern as text", got=pattern, at="$.regex")
    return Regex(pattern=pattern)


def of_schema(schema: Any) -> Spec:
    """JSON Schema as text or mapping, or a type that has one."""
    if isinstance(schema, str):
        try:
            json.loads(schema)
        except ValueError as error:
            raise BadRequest(expected="JSON text", got=schema, at="$.json_schema", hint=str(error)) from None
        return JsonSchema(schema=schema)
    if isinstance(schema, Mapping):
        return JsonSchema(schema=json.dumps(schema, ensure_ascii=False))
    return JsonSchema(schema=_schema_text(schema))


def of_grammar(grammar: Any) -> Spec:
    """Lark (or EBNF/GBNF) text, one of our specs, or an outlines term."""
    if isinstance(grammar, str):
        return Lark(grammar=grammar)
    if isinstance(grammar, _SPECS):
        spec: Spec = grammar
        return spec
    if _is_outlines(grammar):
        return spec_of(grammar)  # its parts keep their kind: a schema inside a sequence is enforced as a schema
    raise BadRequest(
        expected="grammar text, a spec of ramet.constrained, or an outlines term", got=grammar, at="$.grammar"
    )


def _is_outlines(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "outlines"


def _schema_text(dtype: Any) -> str:
    try:
        schema = dtype.model_json_schema() if _is_pydantic(dtype) else msgspec.json.schema(dtype)
    except (TypeError, RuntimeError) as error:
        raise BadRequest(
            expected="a type with a JSON Schema (dataclass, TypedDict, Struct, pydantic model, container)",
            got=dtype,
            at="$.dtype",
            hint=str(error).partition("\n")[0],
        ) from None
    return json.dumps(schema, ensure_ascii=False)


def _json_decoder(dtype: Any) -> Decoder:
    if _is_pydantic(dtype):
        return lambda text: dtype.model_validate_json(text)
    return lambda text: msgspec.json.decode(text.encode(), type=dtype)


def _is_pydantic(dtype: object) -> bool:
    return isinstance(dtype, type) and hasattr(dtype, "model_json_schema")


def decode(decoder: Decoder, text: str, *, reason: str, what: str) -> object:
    """The value of an output, or an error that says why it has none."""
    try:
        return decoder(text)
    except (ValueError, KeyError, msgspec.MsgspecError) as error:
        hint = "It was cut at max_tokens: allow more." if reason == "length" else f"{type(error).__name__}: {error}"
        raise BadRequest(expected=f"the type that {what} asks for", got=text, at="$.dtype", hint=hint) from None
