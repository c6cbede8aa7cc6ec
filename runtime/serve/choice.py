"""One choice while it is generated: its events become parts, its calls get ids, and the whole is kept for the end.

Shared by every chat dialect, streamed or not, so that both say the same thing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ramet.runtime.serve.parts import (
    CallArguments,
    CallBegin,
    Parser,
    Part,
    ReasoningPart,
    TextPart,
)
from ramet.runtime.serve.tools.base import Call
from ramet.runtime.types import Delta, Event, Finished, FinishReason, TokenLogprob


@dataclass(slots=True)
class ChoiceState:
    """What one choice has said so far."""

    parser: Parser
    mint: Callable[[int], str]
    """Number of the call -> its id."""
    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None

    def take(self, event: Event) -> list[Part]:
        """The parts that this event makes certain."""
        if isinstance(event, Delta):
            self.tokens += event.tokens
            self.logprobs += event.logprobs or []
            return self._keep(self.parser.feed(event.text))
        if isinstance(event, Finished):
            self.finished = event
            return self._keep(self.parser.finish())
        return []

    @property
    def finish_reason(self) -> FinishReason:
        """stop becomes tool_calls where there are calls; a cut one stays length."""
        reason = self.finished.reason if self.finished else "length"
        return "tool_calls" if self.calls and reason in ("stop", "tool_calls") else reason

    @property
    def content(self) -> str | None:
        """null beside tool calls, unless something was said (R18)."""
        return (self.text if self.text.strip() else None) if self.calls else self.text

    def _keep(self, parts: list[Part]) -> list[Part]:
        kept: list[Part] = []
        for part in parts:
            match part:
                case TextPart(text):
                    if self.calls and not text.strip():
                        continue  # blanks between calls are nobody's words
                    self.text += text
                case ReasoningPart(text):
                    self.reasoning += text
                case CallBegin(call, name):
                    self.calls.append(Call(self.mint(call), name, ""))
                case CallArguments(call, text):
                    self.calls[call] = self.calls[call]._replace(arguments=self.calls[call].arguments + text)
                case _:
                    pass
            kept.append(part)
        return kept
