"""`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen 2.5 and 3, and many after them."""

from collections.abc import Sequence

from ramet.constrained.spec import Literal_, Spec, Text
from ramet.constrained.spec import Sequence as InOrder
from ramet.runtime.serve.parts import Part, TextPart, held_back
from ramet.runtime.serve.tools.base import Call, Tool, call_object, one_of, repeated
from ramet.runtime.serve.tools.json_call import JsonCall

NAME = "hermes"
SPECIAL_MARKS = False
HAS_TRIGGER = True
BEGIN, END = "<tool_call>", "</tool_call>"


def recognises(chat_template: str) -> bool:
    return BEGIN in chat_template


def describe(tools: Sequence[Tool]) -> str | None:
    return None


def render_calls(calls: Sequence[Call]) -> str | None:
    return None


def spec(tools: Sequence[Tool], *, at_least_one: bool, parallel: bool) -> Spec:
    call = InOrder(
        items=(Literal_(text=f"{BEGIN}\n"), one_of([call_object(tool) for tool in tools]), Literal_(text=f"\n{END}"))
    )
    calls = repeated(call, at_least_one=at_least_one, parallel=parallel, separator="\n")
    return calls if at_least_one else InOrder(items=(Text(until=(BEGIN,)), calls))


def text_only() -> Spec:
    return Text(until=(BEGIN,))


class HermesParser:
    """Text outside the tags, calls inside; blanks around a call belong to nothing."""

    def __init__(self) -> None:
        self._pending = ""
        self._call: JsonCall | None = None
        self._inside = False
        self._num_calls = 0

    def feed(self, text: str) -> list[Part]:
        self._pending += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        if self._call is not None:
            return self._call.finish()
        rest, self._pending = self._pending, ""
        return [TextPart(rest)] if rest and not (self._num_calls and not rest.strip()) else []

    def _step(self, parts: list[Part]) -> bool:
        if not self._inside:
            return self._outside(parts)
        if self._call is None:
            return self._open()
        new, taken = self._call.feed(self._pending)
        parts += new
        self._pending = self._pending[taken:]
        if not self._call.ended:
            return False
        self._num_calls += self._call.is_call
        self._call, self._inside = None, False
        return True

    def _outside(self, parts: list[Part]) -> bool:
        if self._num_calls:  # after a call: its end tag and blanks are not text
            stripped = self._pending.lstrip()
            if END.startswith(stripped) and stripped != END:
                self._pending = stripped
                return False
            self._pending = stripped.removeprefix(END)
        before, mark, after = self._pending.partition(BEGIN)
        if mark:
            if before.strip() or (before and not self._num_calls and parts):
                parts.append(TextPart(before))
            self._pending, self._inside = after, True
            return True
        keep = held_back(self._pending, (BEGIN, END))
        ready = self._pending[: len(self._pending) - keep]
        if not ready.strip():
            return False  # blanks before a call vanish with it; elsewhere they go out with the text after them
        self._pending = self._pending[len(ready) :]
        parts.append(TextPart(ready))
        return False

    def _open(self) -> bool:
        self._pending = self._pending.lstrip()
        if not self._pending:
            return False
        if self._pending[0] != "{":  # no object: the tag was text after all
            self._pending, self._inside = self._pending, False
            return True
        self._call = JsonCall(self._num_calls)
        return True


def parser(tools: Sequence[Tool]) -> HermesParser:
    return HermesParser()
