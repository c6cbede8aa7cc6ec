"""What a finished output fails of the schemas in its spec: keywords that no grammar could hold are judged here.

The ledger said before the first token which keywords were deferred; this says afterwards whether they hold. A schema
may stand anywhere in a spec (behind a trigger, in a tool call, several times): the output is walked once more, with
every schema named, and the walk says which bytes each of them wrote.
"""

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NamedTuple

import msgspec

from ramet.constrained.grammar import CompiledGrammar
from ramet.constrained.json_schema.document import Document
from ramet.constrained.json_schema.text import MAX_EXPONENT, Json, parse
from ramet.constrained.json_schema.validate import Failure, failures
from ramet.constrained.spec import JsonSchema, OneOf, Repeat, Spec, Tagged
from ramet.constrained.spec import Sequence as InOrder

Compile = Callable[[Spec], CompiledGrammar]


class Violation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A keyword that the output fails."""

    part: int
    """Which of the values that schemas wrote into the output, from 0: of a tool call, the call's number."""
    pointer: str
    """Of the keyword, in the schema of that value."""
    at: str
    """Of the offending part, in the value; "" with an empty pointer: the value is not complete."""
    schema: str = ""
    """What the request calls that schema, where it has several."""


class _Part(NamedTuple):
    schema: JsonSchema
    text: str


def judge(spec: Spec, tokens: Sequence[int], compile: Compile) -> list[Violation]:
    """What the output of these tokens fails; empty where all of it holds."""
    return [
        Violation(part=number, schema=part.schema.title, pointer=failure.pointer, at=failure.at)
        for number, part in enumerate(_parts(spec, tokens, compile))
        if part.schema.unsupported == "declare"
        for failure in _failures(part)
    ]


def judge_text(spec: JsonSchema, text: str) -> list[Violation]:
    """What a text fails as the one value of a schema: where somebody else wrote it."""
    return [Violation(part=0, pointer=failure.pointer, at=failure.at) for failure in _failures(_Part(spec, text))]


def _failures(part: _Part) -> list[Failure]:
    try:
        return failures(Document(parse(part.schema.schema)), _value(part.text))
    except (ValueError, RecursionError):  # cut by its length, perhaps; or nested so deep that nobody can say it holds
        return [Failure(pointer="", at="")]


def _value(text: str) -> Json:
    """Exact, and a key twice means its last value, as for who reads the answer."""
    value: Json = json.loads(text, parse_float=_number)
    return value


def _number(text: str) -> Decimal:
    number = Decimal(text)
    if abs(number.adjusted()) > MAX_EXPONENT:
        raise ValueError("a number that is too large to compute with")
    return number


def _parts(spec: Spec, tokens: Sequence[int], compile: Compile) -> list[_Part]:
    """Each value that a schema wrote, in order; the last may be cut short."""
    if isinstance(spec, JsonSchema):
        return [_Part(spec, _output(tokens, compile(spec)).decode(errors="replace"))]
    schemas: list[JsonSchema] = []
    grammar = compile(_named(spec, schemas))
    state = grammar.initial()
    for token in tokens:
        after = state.advance(token)
        if after.ended or after.is_dead:
            break
        state = after
    output, parts = _output(tokens, grammar), list[_Part]()
    begun: tuple[int, int] | None = None
    for name, edge, offset in state.events():
        if edge == "begin":
            begun = (int(name), offset)
        elif begun is not None:
            parts.append(_Part(schemas[begun[0]], output[begun[1] : offset].decode(errors="replace")))
            begun = None
    if begun is not None:
        parts.append(_Part(schemas[begun[0]], output[begun[1] :].decode(errors="replace")))
    return parts


def _output(tokens: Sequence[int], grammar: CompiledGrammar) -> bytes:
    """The bytes by which events count: special tokens have none."""
    vocabulary = grammar.vocabulary
    plain = (token for token in tokens if token not in vocabulary.special_ids and token not in vocabulary.end_id_set)
    return b"".join(vocabulary.token_bytes[token] for token in plain)


def _named(spec: Spec, schemas: list[JsonSchema]) -> Spec:
    """The spec with a tag around each schema, its number in `schemas`, and no other tags."""
    match spec:
        case JsonSchema():
            schemas.append(spec)
            return Tagged(name=str(len(schemas) - 1), item=spec)
        case InOrder() | OneOf():
            return msgspec.structs.replace(spec, items=tuple(_named(item, schemas) for item in spec.items))
        case Repeat():
            return msgspec.structs.replace(spec, item=_named(spec.item, schemas))
        case Tagged():
            return _named(spec.item, schemas)
        case _:
            return spec
