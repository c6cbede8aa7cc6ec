"""What a generation's text is made of, for every dialect: reasoning, text, tool calls. Events in, parts out.

An adapter reads parts and knows nothing of tags; a tool or reasoning format reads text and knows nothing of HTTP.
Whatever the cut of the deltas, the parts joined are the same: each parser holds back only what may still become a mark.
"""

from typing import NamedTuple, Protocol


class TextPart(NamedTuple):
    text: str


class ReasoningPart(NamedTuple):
    text: str


class CallBegin(NamedTuple):
    """A tool call's name is complete."""

    call: int
    name: str


class CallArguments(NamedTuple):
    """More of the call's argument text, byte for byte as generated."""

    call: int
    text: str


class CallEnd(NamedTuple):
    call: int


Part = TextPart | ReasoningPart | CallBegin | CallArguments | CallEnd


class Parser(Protocol):
    """Text -> parts, a piece at a time."""

    def feed(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]:
        """The output has ended: what was held back is now certain."""
        ...


class PlainText:
    """No marks at all: text is text."""

    def feed(self, text: str) -> list[Part]:
        return [TextPart(text)] if text else []

    def finish(self) -> list[Part]:
        return []


class Chain:
    """Reasoning first; its plain text goes on to the tool parser."""

    def __init__(self, first: Parser, second: Parser) -> None:
        self.first, self.second = first, second

    def feed(self, text: str) -> list[Part]:
        return self._pass_on(self.first.feed(text))

    def finish(self) -> list[Part]:
        return [*self._pass_on(self.first.finish()), *self.second.finish()]

    def _pass_on(self, parts: list[Part]) -> list[Part]:
        passed: list[Part] = []
        for part in parts:
            passed += self.second.feed(part.text) if isinstance(part, TextPart) else [part]
        return passed


def held_back(text: str, marks: tuple[str, ...]) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of a mark: it may still grow into one."""
    longest = max((len(mark) for mark in marks), default=0) - 1
    for length in range(min(longest, len(text)), 0, -1):
        suffix = text[-length:]
        if any(mark.startswith(suffix) for mark in marks):
            return length
    return 0
