"""What a tool-call format is: how a model family writes calls, how it is told of tools, and how it is held to them.

One file per family, the same names in each: `NAME`, `recognises`, `describe`, `render_calls`, `spec`,
`text_only`, `parser`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ramet.constrained.spec import JsonSchema, Literal_, OneOf, Regex, Repeat, Spec, Tagged
from ramet.constrained.spec import Sequence as InOrder
from ramet.runtime.serve.parts import Parser

NAME_TAG, ARGUMENTS_TAG = "tool_name", "tool_arguments"


class Tool(NamedTuple):
    """A function the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool
    raw: Mapping[str, Any]
    """As the client sent it: what the chat template gets."""


class Call(NamedTuple):
    """A past call, as the client sent it back."""

    id: str
    name: str
    arguments: str


class ToolFormat(Protocol):
    """A module with these names is one."""

    NAME: str
    SPECIAL_MARKS: bool
    """Its marks are special tokens, which plain decoding would drop."""
    HAS_TRIGGER: bool
    """A mark tells calls from text, so that text stays free while calls obey their schemas."""

    def recognises(self, chat_template: str) -> bool: ...

    def describe(self, tools: Sequence[Tool]) -> str | None:
        """What to add to the system prompt; None where the model's template renders tools itself."""
        ...

    def render_calls(self, calls: Sequence[Call]) -> str | None:
        """Past calls as assistant text; None where the template renders them."""
        ...

    def spec(self, tools: Sequence[Tool], *, at_least_one: bool, parallel: bool) -> Spec:
        """The grammar of calls (and of free text before them, unless one is required)."""
        ...

    def text_only(self) -> Spec:
        """The grammar of an answer without any call, though the model was told of tools."""
        ...

    def parser(self, tools: Sequence[Tool]) -> Parser: ...


def call_object(tool: Tool, argument_key: str = "arguments") -> Spec:
    """`{"name": "...", "arguments": {...}}` with the tool's schema, its name and arguments reported as events."""
    return InOrder(
        items=(
            Literal_(text='{"name": "'),
            Tagged(name=NAME_TAG, item=Literal_(text=json.dumps(tool.name, ensure_ascii=False)[1:-1])),
            Literal_(text=f'", "{argument_key}": '),
            Tagged(name=ARGUMENTS_TAG, item=arguments_schema(tool)),
            Literal_(text="}"),
        )
    )


def arguments_schema(tool: Tool) -> Spec:
    """The language of a tool's arguments: always an object, and the tool's own schema, closed where it says nothing."""
    schema = closed(dict(tool.parameters)) or {"type": "object"}
    schema.setdefault("type", "object")
    return JsonSchema(
        schema=json.dumps(schema, ensure_ascii=False),
        unsupported="error" if tool.strict else "declare",
        title=f"the tool {tool.name!r}",
    )


_COMPOSED = ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "patternProperties", "unevaluatedProperties")


def closed(schema: Any) -> Any:
    """The schema with `additionalProperties: false` wherever an object names its properties and says nothing of others.

    A narrower language, every output of which the tool's schema accepts: arguments that nobody declared help no tool,
    and small models would write them until they run out of tokens. Composed objects stay open, for their parts name
    properties for each other.
    """
    if not isinstance(schema, dict):
        return schema
    inner = {
        key: {name: closed(item) for name, item in value.items()}
        if key in ("properties", "$defs", "definitions") and isinstance(value, dict)
        else closed(value)
        if key in ("items", "additionalProperties")
        else [closed(item) for item in value]
        if key in ("prefixItems", "anyOf", "oneOf") and isinstance(value, list)
        else value
        for key, value in schema.items()
    }
    if "properties" in inner and "additionalProperties" not in inner and not any(key in inner for key in _COMPOSED):
        inner["additionalProperties"] = False
    return inner


def no_leading_brace() -> Spec:
    """Text that does not begin like a call, for formats where a call begins with its brace."""
    return Regex(pattern=r"\s*([^\s{][\s\S]*)?")


def one_of(items: Sequence[Spec]) -> Spec:
    return items[0] if len(items) == 1 else OneOf(items=tuple(items))


def repeated(item: Spec, *, at_least_one: bool, parallel: bool, separator: str = "") -> Spec:
    """No call, one or many, as the request allows."""
    return Repeat(item=item, minimum=int(at_least_one), maximum=None if parallel else 1, separator=separator)
