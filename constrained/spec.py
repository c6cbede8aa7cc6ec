"""What a user may ask of an output: the specs that `constrained.compile` takes. Values only; msgspec-encodable.

A spec crosses the process border inside a GenerateSpec, so it holds text, never compiled things.
"""

from typing import Literal

import msgspec


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, tag="json_schema"):
    """Output is one JSON value that the schema accepts."""

    schema: str
    """The schema as JSON text, in the client's order of keys."""
    unsupported: Literal["error", "declare"] = "error"
    """A keyword that can't be enforced: refuse before any token, or generate, validate at the end and say so."""
    whitespace: Literal["compact", "bounded", "exact"] = "bounded"
    """compact: none; bounded: nothing, one space, or a newline and at most 20 blanks; exact: any JSON whitespace."""
    any_order: bool = False
    """Keys in any order instead of the declared one."""
    title: str = ""
    """What a refusal calls this schema, where one request has several: `the tool 'search'`."""


class JsonObject(msgspec.Struct, frozen=True, kw_only=True, tag="json_object"):
    """Any JSON object (`response_format: json_object`)."""

    whitespace: Literal["compact", "bounded", "exact"] = "bounded"


class Regex(msgspec.Struct, frozen=True, kw_only=True, tag="regex"):
    """The whole output matches the pattern (ECMA-262 / Python common subset), anchored at both ends."""

    pattern: str


class Choice(msgspec.Struct, frozen=True, kw_only=True, tag="choice"):
    """The output is one of these texts."""

    choices: tuple[str, ...]


class Lark(msgspec.Struct, frozen=True, kw_only=True, tag="lark"):
    """A Lark grammar (or the EBNF/GBNF subset, recognised by its form)."""

    grammar: str
    start: str = "start"


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Free text until one of the triggers (not consumed) or the end."""

    until: tuple[str, ...] = ()


class Literal_(msgspec.Struct, frozen=True, kw_only=True, tag="literal"):
    """Exactly this text; `special` names one special token instead of its characters."""

    text: str
    special: bool = False


class Sequence(msgspec.Struct, frozen=True, kw_only=True, tag="sequence"):
    """One after the other."""

    items: tuple["Spec", ...]


class OneOf(msgspec.Struct, frozen=True, kw_only=True, tag="one_of"):
    """Exactly one of these."""

    items: tuple["Spec", ...]


class Repeat(msgspec.Struct, frozen=True, kw_only=True, tag="repeat"):
    """`item` between `minimum` and `maximum` times (None: without limit), with `separator` between."""

    item: "Spec"
    minimum: int = 0
    maximum: int | None = None
    separator: str = ""


class Tagged(msgspec.Struct, frozen=True, kw_only=True, tag="tagged"):
    """`item`, reported by name: automaton events say where it begins and ends (a tool's name, its arguments)."""

    name: str
    item: "Spec"


Spec = JsonSchema | JsonObject | Regex | Choice | Lark | Text | Literal_ | Sequence | OneOf | Repeat | Tagged
"""Anything `compile` takes."""
