"""For models whose template knows no tools: the system prompt lists them; a call is a JSON object and nothing else."""

import json
from collections.abc import Collection, Sequence

from ramet.constrained.spec import OneOf, Spec, Text
from ramet.runtime.serve.parts import Part, TextPart
from ramet.runtime.serve.tools.base import Call, Tool, call_object, no_leading_brace, one_of, repeated
from ramet.runtime.serve.tools.json_call import JsonCall

NAME = "json"
SPECIAL_MARKS = False
HAS_TRIGGER = False


def recognises(chat_template: str) -> bool:
    """The last resort: fits every template."""
    return True


def describe(tools: Sequence[Tool]) -> str | None:
    listed = "\n".join(json.dumps(_described(tool), ensure_ascii=False) for tool in tools)
    return (
        "You can call these tools, each given as JSON:\n"
        f"{listed}\n"
        'To call one, answer with nothing but a JSON object: {"name": "TOOL", "arguments": {...}}'
    )


def render_calls(calls: Sequence[Call]) -> str | None:
    return "\n".join(f'{{"name": {json.dumps(c.name, ensure_ascii=False)}, "arguments": {c.arguments}}}' for c in calls)


def spec(tools: Sequence[Tool], *, at_least_one: bool, parallel: bool) -> Spec:
    calls = repeated(
        one_of([call_object(tool) for tool in tools]), at_least_one=True, parallel=parallel, separator="\n"
    )
    return calls if at_least_one else OneOf(items=(Text(until=("{",)), calls))


def text_only() -> Spec:
    return no_leading_brace()


class PlainJsonParser:
    """The output is calls from its first visible character on, or it is text to the end."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._pending = ""
        self._call: JsonCall | None = None
        self._num_calls = 0
        self._is_text = False

    def feed(self, text: str) -> list[Part]:
        self._pending += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        if self._call is not None:
            return self._call.finish()
        return [TextPart(self._pending)] if self._pending and not self._num_calls else []

    def _step(self, parts: list[Part]) -> bool:
        if self._is_text:
            if self._pending:
                parts.append(TextPart(self._pending))
            self._pending = ""
            return False
        if self._call is None:
            return self._between()
        new, taken = self._call.feed(self._pending)
        parts += new
        self._pending = self._pending[taken:]
        if not self._call.ended:
            return False
        self._is_text = not self._call.is_call
        self._num_calls += self._call.is_call
        self._call = None
        return True

    def _between(self) -> bool:
        visible = self._pending.lstrip(" \r\n\t,;" if self._num_calls else " \r\n\t")
        if not visible:
            return False
        if visible[0] == "{":
            self._pending, self._call = visible, JsonCall(self._num_calls, self._names)
        else:
            self._is_text = True
        return True


def parser(tools: Sequence[Tool]) -> PlainJsonParser:
    return PlainJsonParser({tool.name for tool in tools})


def _described(tool: Tool) -> dict[str, object]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
