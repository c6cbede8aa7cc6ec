"""Llama 3.1 and later: `{"name": ..., "parameters": ...}`, often after `<|python_tag|>`, several joined by `;`."""

from collections.abc import Sequence

from ramet.constrained.spec import OneOf, Spec, Text
from ramet.runtime.serve.parts import Part
from ramet.runtime.serve.tools.base import Call, Tool, call_object, no_leading_brace, one_of, repeated
from ramet.runtime.serve.tools.plain_json import PlainJsonParser

NAME = "llama3"
SPECIAL_MARKS = True
HAS_TRIGGER = False
MARK = "<|python_tag|>"


def recognises(chat_template: str) -> bool:
    return MARK in chat_template or '"parameters": dictionary of argument name' in chat_template


def describe(tools: Sequence[Tool]) -> str | None:
    return None


def render_calls(calls: Sequence[Call]) -> str | None:
    return None


def spec(tools: Sequence[Tool], *, at_least_one: bool, parallel: bool) -> Spec:
    call = one_of([call_object(tool, "parameters") for tool in tools])
    calls = repeated(call, at_least_one=True, parallel=parallel, separator="; ")
    return calls if at_least_one else OneOf(items=(Text(until=("{",)), calls))


def text_only() -> Spec:
    return no_leading_brace()


class Llama3Parser:
    """The plain parser, once a leading mark is gone."""

    def __init__(self, inner: PlainJsonParser) -> None:
        self._inner = inner
        self._start: str | None = ""

    def feed(self, text: str) -> list[Part]:
        if self._start is None:
            return self._inner.feed(text)
        self._start += text
        if MARK.startswith(self._start):
            return []
        text, self._start = self._start.removeprefix(MARK), None
        return self._inner.feed(text)

    def finish(self) -> list[Part]:
        held, self._start = self._start or "", None
        return [*self._inner.feed("" if held == MARK else held), *self._inner.finish()]


def parser(tools: Sequence[Tool]) -> Llama3Parser:
    return Llama3Parser(PlainJsonParser({tool.name for tool in tools}))
