"""Chat messages -> token ids: the model's own template, tokenised only where it is new, with our own turns spliced in.

Three ideas, each exact:
1. *A user can't write control tokens.* Their names inside messages are guarded while the template renders, and plain
   text when it is tokenised.
2. *Only what is new is tokenised.* Special tokens cut a text into segments that tokenise by themselves; segments are
   remembered, so a long history costs its last turn. The ids equal those of the whole text.
3. *Our own words come back as our own tokens.* An assistant turn that this server generated is replaced by the very
   tokens of that generation (splice.py), so that re-serialised arguments and re-tokenised text still hit the cache.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramet.runtime.chat_template import GUARD, ChatTemplate, guard_special
from ramet.runtime.literals import TextCodec

_TURN_OPEN, _TURN_CLOSE = "\ufdd2", "\ufdd3"
"""Unicode noncharacters, never in text: a spliced turn's place, while the template renders around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A prompt, as text and as ids."""

    text: str
    """As the model sees it."""
    tokens: list[int]
    num_spliced: int = 0
    """Tokens that came from earlier generations as they were."""
    head: str = ""
    """A digest of the conversation, where the answer's prompt is to be kept (history.py)."""


class Memo(OrderedDict[tuple[str, str], list[int]]):
    """The least recently made segments go first."""

    max_segments = 16384

    def __setitem__(self, key: tuple[str, str], value: list[int]) -> None:
        super().__setitem__(key, value)
        if len(self) > self.max_segments:
            self.popitem(last=False)


@dataclass(slots=True, kw_only=True)
class PromptRenderer:
    """Renders and tokenises for one model. For one event loop."""

    tokenizer: TextCodec
    template: ChatTemplate
    _memo: Memo = field(default_factory=Memo)

    def template_from(self, source: str) -> ChatTemplate:
        """A template that came with a request, with this model's tokens."""
        bos, eos = self.tokenizer.bos_id, self.tokenizer.eos_id
        special_text = self.tokenizer.special_text
        return ChatTemplate(source, bos_token=special_text(bos), eos_token=special_text(eos))

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
        guarded = guard_special(list(messages), self.tokenizer.special_names)
        placed = [_with_mark(message, i) if i in turns else message for i, message in enumerate(guarded)]
        text = (template or self.template).render(placed, **arguments)
        pieces = _split_turns(text)
        if [piece for piece in pieces if isinstance(piece, int)] != sorted(turns):
            return self.render(messages, template=template, **arguments)  # the template moved a turn: no splice
        tokens: list[int] = []
        for piece in pieces:
            tokens += turns[piece] if isinstance(piece, int) else self.tokenizer.encode_guarded(piece, self._memo)
        spelled = (self._spelled(turns[p]) if isinstance(p, int) else p.replace(GUARD, "") for p in pieces)
        return Rendered(text="".join(spelled), tokens=tokens, num_spliced=sum(map(len, turns.values())))

    def append(
        self,
        before: Sequence[int],
        turn: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        index: int,
        **arguments: Any,
    ) -> Rendered | None:
        """The prompt `before` and its answer `turn` as they were run, and what the template writes behind message
        `index`, which is that answer. None where the template leaves it out."""
        guarded = guard_special(list(messages), self.tokenizer.special_names)
        placed = [_with_mark(message, i) if i == index else message for i, message in enumerate(guarded)]
        pieces = _split_turns(self.template.render(placed, **arguments))
        tail = pieces[-1]
        if pieces[1:-1] != [index] or not isinstance(tail, str):
            return None
        ran = [*before, *turn]
        tokens = [*ran, *self.tokenizer.encode_guarded(tail, self._memo)]
        return Rendered(text=self._spelled(ran) + tail.replace(GUARD, ""), tokens=tokens, num_spliced=len(ran))

    def _spelled(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special=False)


def _with_mark(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The assistant's message with nothing in it but its place."""
    kept = {key: value for key, value in message.items() if key not in ("tool_calls", "reasoning_content")}
    return {**kept, "content": f"{_TURN_OPEN}{index}{_TURN_CLOSE}"}


def _split_turns(text: str) -> list[str | int]:
    """Rendered text, cut at the places of spliced turns; a place becomes its message index."""
    parts = re.split(f"{_TURN_OPEN}(\\d+){_TURN_CLOSE}", text)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]
