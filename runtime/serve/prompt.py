"""Chat messages -> token ids: the model's own template, tokenised only where it is new, with our own turns spliced in.

Three ideas, each exact:
1. *A user can't write control tokens.* Special tokens inside message contents are masked before rendering and come back
   as plain text after it, so that only the template's own count.
2. *Only what is new is tokenised.* Special tokens cut a text into segments that tokenise independently; segments are
   remembered, so a long history costs its last turn. The ids equal those of the whole text.
3. *Our own words come back as our own tokens.* An assistant turn that this server generated is replaced by the very
   tokens of that generation (see splice.py), so that re-serialised arguments and re-tokenised text still hit the cache.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.tokenizer import Tokenizer

_MASK_OPEN, _MASK_CLOSE = "\ue000", "\ue001"
_TURN_OPEN, _TURN_CLOSE = "\ue002", "\ue003"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A prompt, as text and as ids."""

    text: str
    """As the model sees it; masked control tokens spelled out."""
    tokens: list[int]
    num_spliced: int = 0
    """Tokens that came from earlier generations as they were."""


@dataclass(slots=True)
class PromptRenderer:
    """Renders and tokenises for one model. Safe to share between requests of one event loop."""

    tokenizer: Tokenizer
    template: ChatTemplate
    max_segments: int = 8192
    _segments: OrderedDict[str, list[int]] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        names = self.tokenizer.special_names
        self._special = re.compile("|".join(re.escape(name) for name in names)) if names else None
        self._names = names

    _special: re.Pattern[str] | None = None
    _names: tuple[str, ...] = ()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        turns: Mapping[int, Sequence[int]] | None = None,
        template: ChatTemplate | None = None,
        **arguments: Any,
    ) -> Rendered:
        """messages  in the template's form
        turns     message index -> the tokens of that assistant turn, where it is ours
        template  another one than the model's, for this request
        arguments of ChatTemplate.render: tools, add_generation_prompt, continue_final_message, template variables
        """
        turns = turns or {}
        masked = [self._masked(message, _turn_mark(i) if i in turns else None) for i, message in enumerate(messages)]
        text = (template or self.template).render(masked, **arguments)
        pieces = _split_turns(text)
        if {piece for piece in pieces if isinstance(piece, int)} != set(turns):
            return self.render(messages, template=template, **arguments)  # the template hid a turn: no splice
        tokens: list[int] = []
        spelled: list[str] = []
        num_spliced = 0
        for piece in pieces:
            if isinstance(piece, int):
                tokens += turns[piece]
                num_spliced += len(turns[piece])
                spelled.append(self.tokenizer.decode(list(turns[piece]), skip_special=False))
            else:
                tokens += self.encode(piece)
                spelled.append(self._unmasked(piece))
        return Rendered(text="".join(spelled), tokens=tokens, num_spliced=num_spliced)

    def encode(self, text: str) -> list[int]:
        """Ids of rendered text: the template's special tokens count, masked ones are plain text again."""
        if self._special is None:
            return self._segment(self._unmasked(text))
        tokens: list[int] = []
        end = 0
        for found in self._special.finditer(text):
            tokens += self._segment(self._unmasked(text[end : found.start()]))
            identity = self.tokenizer.token_id(found.group())
            assert identity is not None
            tokens.append(identity)
            end = found.end()
        return tokens + self._segment(self._unmasked(text[end:]))

    def _segment(self, text: str) -> list[int]:
        if not text:
            return []
        known = self._segments.get(text)
        if known is None:
            known = self._segments[text] = self.tokenizer.encode(text)
            if len(self._segments) > self.max_segments:
                self._segments.popitem(last=False)
        else:
            self._segments.move_to_end(text)
        return known

    def _masked(self, message: Mapping[str, Any], turn: str | None) -> dict[str, Any]:
        masked = {key: _map_text(value, self._mask) if key != "role" else value for key, value in message.items()}
        if turn is not None:
            masked["content"] = turn
            masked.pop("tool_calls", None)
            masked.pop("reasoning_content", None)
        return masked

    def _mask(self, text: str) -> str:
        if any(mark in text for mark in (_MASK_OPEN, _TURN_OPEN)):
            text = re.sub("[\ue000-\ue003]", "\ufffd", text)
        if self._special is None:
            return text
        return self._special.sub(lambda found: f"{_MASK_OPEN}{self._names.index(found.group())}{_MASK_CLOSE}", text)

    def _unmasked(self, text: str) -> str:
        if _MASK_OPEN not in text:
            return text
        return re.sub(f"{_MASK_OPEN}(\\d+){_MASK_CLOSE}", lambda found: self._names[int(found.group(1))], text)


def _turn_mark(index: int) -> str:
    return f"{_TURN_OPEN}{index}{_TURN_CLOSE}"


def _split_turns(text: str) -> list[str | int]:
    """Rendered text, cut at the marks of spliced turns; a mark becomes its message index."""
    parts = re.split(f"{_TURN_OPEN}(\\d+){_TURN_CLOSE}", text)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_text(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _map_text(item, change) for key, item in value.items()}
    return value
