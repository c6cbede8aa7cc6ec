"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": ...}, ...]`, and since version 11 `[TOOL_CALLS]name[ARGS]{...}`."""

from collections.abc import Sequence

from ramet.constrained.spec import Literal_, Spec, Text
from ramet.constrained.spec import Sequence as InOrder
from ramet.runtime.serve.parts import CallArguments, CallBegin, CallEnd, Part, TextPart, held_back
from ramet.runtime.serve.tools.base import Call, Tool, call_object, one_of, repeated
from ramet.runtime.serve.tools.json_call import JsonCall

NAME = "mistral"
SPECIAL_MARKS = True
HAS_TRIGGER = True
MARK, ARGUMENTS_MARK = "[TOOL_CALLS]", "[ARGS]"


def recognises(chat_template: str) -> bool:
    return MARK in chat_template


def describe(tools: Sequence[Tool]) -> str | None:
    return None


def render_calls(calls: Sequence[Call]) -> str | None:
    return None


def spec(tools: Sequence[Tool], *, at_least_one: bool, parallel: bool) -> Spec:
    one = one_of([call_object(tool) for tool in tools])
    calls = InOrder(
        items=(
            Literal_(text=MARK, special=True),
            Literal_(text="["),
            repeated(one, at_least_one=True, parallel=parallel, separator=", "),
            Literal_(text="]"),
        )
    )
    return (
        calls
        if at_least_one
        else InOrder(items=(Text(until=(MARK,)), repeated(calls, at_least_one=False, parallel=False)))
    )


def text_only() -> Spec:
    return Text(until=(MARK,))


class MistralParser:
    """Text up to the mark; then either a JSON list of calls, or a name, its mark, and an object."""

    def __init__(self) -> None:
        self._pending = ""
        self._state = "text"
        self._call: JsonCall | None = None
        self._num_calls = 0
        self._depth = 0
        self._quoted = self._escaped = False

    def feed(self, text: str) -> list[Part]:
        self._pending += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        match self._state:
            case "call" if self._call is not None:
                return self._call.finish()
            case "arguments":
                return [CallEnd(self._num_calls - 1)]
            case "name":
                return [TextPart(MARK + self._pending)] if self._pending.strip() else []
            case _:
                rest = self._pending if not self._num_calls else ""
                return [TextPart(rest)] if rest else []

    def _step(self, parts: list[Part]) -> bool:
        match self._state:
            case "text":
                return self._text(parts)
            case "name":
                return self._name(parts)
            case "call":
                return self._one_of_list(parts)
            case _:
                return self._arguments(parts)

    def _text(self, parts: list[Part]) -> bool:
        before, mark, after = self._pending.partition(MARK)
        keep = 0 if mark else held_back(before, (MARK,))
        ready = before[: len(before) - keep]
        if ready and not (self._num_calls and not ready.strip(" ]\n")):
            parts.append(TextPart(ready))
        self._pending = after if mark else before[len(before) - keep :]
        self._state = "name" if mark else "text"
        return bool(mark)

    def _name(self, parts: list[Part]) -> bool:
        visible = self._pending.lstrip()
        if visible.startswith("["):
            self._pending, self._state = visible[1:], "call"
            return True
        name, mark, after = self._pending.partition(ARGUMENTS_MARK)
        if not mark:
            return False
        parts.append(CallBegin(self._num_calls, name.strip()))
        self._num_calls += 1
        self._pending, self._state, self._depth = after, "arguments", 0
        return True

    def _one_of_list(self, parts: list[Part]) -> bool:
        if self._call is None:
            self._pending = self._pending.lstrip(" \n,")
            if not self._pending:
                return False
            if self._pending[0] != "{":
                self._pending, self._state = self._pending[1:], "text"
                return True
            self._call = JsonCall(self._num_calls)
        new, taken = self._call.feed(self._pending)
        parts += new
        self._pending = self._pending[taken:]
        if not self._call.ended:
            return False
        self._num_calls += self._call.is_call
        self._call = None
        return True

    def _arguments(self, parts: list[Part]) -> bool:
        taken = 0
        for character in self._pending:
            taken += 1
            if self._ends_object(character):
                break
        else:
            self._emit(parts, taken)
            return False
        self._emit(parts, taken)
        parts.append(CallEnd(self._num_calls - 1))
        self._state = "text"
        return True

    def _emit(self, parts: list[Part], taken: int) -> None:
        ready, self._pending = self._pending[:taken], self._pending[taken:]
        if ready:
            parts.append(CallArguments(self._num_calls - 1, ready))

    def _ends_object(self, character: str) -> bool:
        if self._quoted:
            if self._escaped or character == "\\":
                self._escaped = not self._escaped
            elif character == '"':
                self._quoted = False
            return False
        if character == '"':
            self._quoted = True
        self._depth += (character in "{[") - (character in "}]")
        return character in "}]" and self._depth == 0


def parser(tools: Sequence[Tool]) -> MistralParser:
    return MistralParser()
