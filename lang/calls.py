"""How a tool call looks in an assistant's text, its grammar, and the way back. Knows names and schemas, not functions.

A call is written in the form many open models were trained on (Hermes): `<tool_call>`, a JSON object with name and
arguments, `</tool_call>`. The grammar of `gen(tools=...)` lets nothing else through.
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from ramet.constrained.spec import JsonSchema, Literal_, OneOf, Repeat, Sequence, Spec, Tagged, Text
from ramet.runtime.errors import BadRequest

OPEN, CLOSE = "<tool_call>\n", "\n</tool_call>"
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_TAG = "arguments:"


class ToolCall(NamedTuple):
    """One call, as the model wrote it."""

    id: str
    name: str
    arguments: str
    """JSON text."""
    problem: str | None = None
    """Why it can't be run, if the text is not a call."""


def call_spec(tools: Mapping[str, Mapping[str, object]], choice: str = "auto") -> Spec:
    """The grammar of an assistant's turn.

    tools: name -> JSON Schema of the arguments. choice: "auto", free text and then calls; "required", one call or more;
    a name, one call of it.
    """
    if choice not in ("auto", "required", *tools):
        raise BadRequest(expected=f"auto, required or one of {list(tools)}", got=choice, at="$.tool_choice")
    wanted = [name for name in tools if choice in ("auto", "required", name)]
    one_of = OneOf(items=tuple(_one_call(name, tools[name]) for name in wanted))
    call = Sequence(items=(Literal_(text=OPEN), one_of, Literal_(text=CLOSE)))
    if choice == "auto":
        return Sequence(items=(Text(until=(OPEN.strip(),)), Repeat(item=call, separator="\n")))
    return Repeat(item=call, minimum=1, maximum=None if choice == "required" else 1, separator="\n")


def _one_call(name: str, parameters: Mapping[str, object]) -> Spec:
    head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    arguments = JsonSchema(schema=json.dumps(parameters, ensure_ascii=False))
    return Sequence(items=(Literal_(text=head), Tagged(name=_TAG + name, item=arguments), Literal_(text="}")))


class CallGrammar(NamedTuple):
    """What a grammar made by `call_spec` says."""

    names: list[str]
    choice: str


def read_spec(spec: Spec) -> CallGrammar | None:
    """The way back from `call_spec`; None for any other spec."""
    auto = isinstance(spec, Sequence) and len(spec.items) == 2 and isinstance(spec.items[0], Text)
    repeat = spec.items[1] if auto and isinstance(spec, Sequence) else spec
    if not isinstance(repeat, Repeat) or not isinstance(repeat.item, Sequence) or len(repeat.item.items) != 3:
        return None
    one_of = repeat.item.items[1]
    if not isinstance(one_of, OneOf):
        return None
    calls = [call.items[1] for call in one_of.items if isinstance(call, Sequence) and len(call.items) == 3]
    names = [tag.name.removeprefix(_TAG) for tag in calls if isinstance(tag, Tagged) and tag.name.startswith(_TAG)]
    choice = "auto" if auto else "required" if repeat.maximum is None else names[0]
    return CallGrammar(names, choice) if names else None


def write_call(name: str, arguments: str) -> str:
    """A call as text. arguments: JSON text, kept byte for byte."""
    return f'{OPEN}{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments or "{}"}}}{CLOSE}'


def parse_calls(text: str, *, first: int = 0, complete_only: bool = False) -> list[ToolCall]:
    """The calls in a turn's text, in order. first: number of the first, for its id; complete_only: while streaming."""
    found = [match for match in _CALL.finditer(text) if not complete_only or match[0].endswith(CLOSE.strip())]
    return [_parse_call(match[1], f"call_{first + index}") for index, match in enumerate(found)]


def _parse_call(body: str, identity: str) -> ToolCall:
    try:
        data = json.loads(body)
        name, arguments = data["name"], data.get("arguments", {})
        if not isinstance(name, str):
            raise TypeError("name is no text")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"Error: this is no tool call ({type(error).__name__}: {error}). Write " + OPEN.strip()
        return ToolCall(identity, "", body, problem + '{"name": ..., "arguments": {...}}' + CLOSE.strip() + ".")
    return ToolCall(
        identity, name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )


def without_calls(text: str) -> str:
    """What a turn says beside its calls."""
    return _CALL.sub("", text).strip()
