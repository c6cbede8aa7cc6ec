"""Reasoning between `<think>` and `</think>`: Qwen, DeepSeek and their kin.

Some templates put the opening tag into the prompt, so the output begins inside; then `starts_inside` is true.
"""

from ramet.runtime.serve.parts import Part, ReasoningPart, TextPart, held_back

NAME = "think"
BEGIN, END = "<think>", "</think>"


def recognises(chat_template: str) -> bool:
    """Does a model with this template think in these tags?"""
    return END in chat_template or BEGIN in chat_template


def starts_inside(prompt: str) -> bool:
    """Did the rendered prompt already open the block?"""
    return prompt.rstrip().endswith(BEGIN)


class ThinkParser:
    """Splits one output. Blank lines between the closing tag and the answer belong to neither."""

    def __init__(self, *, inside: bool = False) -> None:
        self._state = "inside" if inside else "before"
        self._pending = ""

    def feed(self, text: str) -> list[Part]:
        self._pending += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        rest, self._pending = self._pending, ""
        if not rest:
            return []
        return [ReasoningPart(rest)] if self._state == "inside" else [TextPart(rest)]

    def _step(self, parts: list[Part]) -> bool:
        """Handle what is certain; True where the state changed and more may follow."""
        match self._state:
            case "before":
                return self._before(parts)
            case "opened":
                return self._opened()
            case "inside":
                return self._inside(parts)
            case "between":
                return self._between()
            case _:
                return self._after(parts)

    def _before(self, parts: list[Part]) -> bool:
        stripped = self._pending.lstrip()
        if stripped.startswith(BEGIN):
            self._pending, self._state = stripped[len(BEGIN) :], "opened"
            return True
        if BEGIN.startswith(stripped):
            return False
        self._state = "after"
        return True

    def _opened(self) -> bool:
        if not self._pending:
            return False
        self._pending, self._state = self._pending.removeprefix("\n"), "inside"
        return True

    def _inside(self, parts: list[Part]) -> bool:
        reasoning, mark, rest = self._pending.partition(END)
        if mark:
            if reasoning:
                parts.append(ReasoningPart(reasoning))
            self._pending, self._state = rest, "between"
            return True
        keep = held_back(self._pending, (END,))
        ready, self._pending = self._pending[: len(self._pending) - keep], self._pending[len(self._pending) - keep :]
        if ready:
            parts.append(ReasoningPart(ready))
        return False

    def _between(self) -> bool:
        self._pending = self._pending.lstrip("\n")
        if not self._pending:
            return False
        self._state = "after"
        return True

    def _after(self, parts: list[Part]) -> bool:
        if self._pending:
            parts.append(TextPart(self._pending))
        self._pending = ""
        return False
