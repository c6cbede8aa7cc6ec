"""Chat on a branch: messages in, and out comes the text that the branch must be given next. Knows templates and text.

The whole conversation is rendered by the model's own template each time, and what the branch has already is taken off
its front. Three cases:
- The new rendering begins with the old one: the rest is the addition. (A turn costs its own tokens.)
- It differs only inside the words that the model wrote (templates trim blanks): the branch keeps the words as they were
  sampled, and the addition begins after them.
- The template writes history anew (it drops old reasoning, say): the longest common beginning is kept, and the reason
is
  recorded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.literals import guard
from ramet.runtime.types import Message, MessagesPiece

TemplateOf = Callable[[str | None], ChatTemplate]
"""The model's template (None), or one compiled from the text that a caller gave."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said so far on a branch. Immutable: a mark is a reference."""

    messages: tuple[Mapping[str, object], ...] = ()
    rendered: str = ""
    """Guarded text that the template gave, up to where the open turn's words begin (or the end)."""
    on_branch: str = ""
    """The same as it stands on the branch, where words are as they were sampled."""
    places: tuple[tuple[int, int], ...] = ((0, 0),)
    """After each piece: lengths of `rendered` and `on_branch`."""
    open_turn: Mapping[str, object] | None = None
    """The message that is being written, with the content that stands in `rendered` already."""
    words: str = ""
    """Guarded text that was written since the last piece."""
    tools: Sequence[Mapping[str, object]] | None = None
    arguments: Mapping[str, object] | None = None
    template_text: str | None = None

    @property
    def has_begun(self) -> bool:
        """Text before the first message is no part of the conversation."""
        return bool(self.messages) or self.open_turn is not None

    def with_words(self, text: str) -> "Conversation":
        """Text that came on the branch after the last piece."""
        return replace(self, words=self.words + text) if self.has_begun else self

    def branch_text(self, rendered_length: int) -> str:
        """What stands on the branch from a length of the template's text on."""
        at, here = max((place for place in self.places if place[0] <= rendered_length), key=lambda place: place[0])
        return (self.on_branch + self.words)[here + rendered_length - at :]


class Appended(NamedTuple):
    """What a MessagesPiece asks of the branch."""

    conversation: Conversation
    removed: str
    """Guarded text to take off the branch's end first: the template wrote it anew. Mostly empty."""
    addition: str
    """Guarded text to append then."""


def append(
    conversation: Conversation,
    piece: MessagesPiece,
    template_of: TemplateOf,
    special_names: Sequence[str],
    end_texts: Sequence[str],
) -> Appended:
    """Close the open turn and add the piece's messages. `end_texts`: what ends a turn, if the model wrote it itself."""
    before = _with_settings(conversation, piece)
    template = template_of(before.template_text)
    closed = _closed(before, end_texts)
    messages = (*closed, *(_guarded(message, special_names) for message in piece.messages))
    if not messages:
        return Appended(before, "", "")
    full = _render(template, before, messages, piece.add_generation_prompt, piece.continue_final_message)
    num_kept, start = _overlap(template, before, closed, full)
    removed = "" if num_kept is None else before.branch_text(num_kept)
    on_branch = before.on_branch + before.words
    on_branch = on_branch[: len(on_branch) - len(removed)] + full[start:]
    places = tuple(place for place in before.places if place[0] <= start and place[1] <= len(on_branch))
    after = replace(
        before,
        messages=messages[:-1] if piece.continue_final_message else messages,
        rendered=full,
        on_branch=on_branch,
        places=(*places, (len(full), len(on_branch))),
        open_turn=_opened(messages, piece),
        words="",
    )
    return Appended(after, removed, full[start:])


def _with_settings(conversation: Conversation, piece: MessagesPiece) -> Conversation:
    """Tools, template and its arguments hold from the piece that names them on."""
    return replace(
        conversation,
        tools=conversation.tools if piece.tools is None else piece.tools,
        arguments={**(conversation.arguments or {}), **piece.template_arguments},
        template_text=conversation.template_text if piece.chat_template is None else piece.chat_template,
    )


def _closed(conversation: Conversation, end_texts: Sequence[str]) -> tuple[Mapping[str, object], ...]:
    """The messages, that of the open turn with all its words last."""
    turn = conversation.open_turn
    if turn is None:
        return conversation.messages
    words = conversation.words
    for end in end_texts:
        words = words.removesuffix(end) if end else words
    return (*conversation.messages, {**turn, "content": f"{turn['content']}{words}"})


def _opened(messages: Sequence[Mapping[str, object]], piece: MessagesPiece) -> Mapping[str, object] | None:
    if piece.continue_final_message:
        return messages[-1]
    return {"role": "assistant", "content": ""} if piece.add_generation_prompt else None


def _guarded(message: Message, special_names: Sequence[str]) -> Mapping[str, object]:
    """A message in which no special token counts."""
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return {name: _guard_in(value, special_names) for name, value in fields.items() if value is not None}


def _guard_in(value: object, special_names: Sequence[str]) -> object:
    match value:
        case str():
            return guard(value, special_names)
        case Mapping():
            return {key: _guard_in(item, special_names) for key, item in value.items()}
        case list() | tuple():
            return [_guard_in(item, special_names) for item in value]
    return value


def _render(
    template: ChatTemplate, settings: Conversation, messages: Sequence[Mapping[str, object]], opens: bool, goes_on: bool
) -> str:
    return template.render(
        messages,
        tools=settings.tools,
        add_generation_prompt=opens,
        continue_final_message=goes_on,
        **(settings.arguments or {}),
    )


def _overlap(
    template: ChatTemplate, before: Conversation, closed: Sequence[Mapping[str, object]], full: str
) -> tuple[int | None, int]:
    """How much of the old rendering stands (None: all), and where in `full` the addition begins."""
    have = before.rendered + before.words
    if full.startswith(have):
        return None, len(have)
    if before.open_turn is not None and full.startswith(before.rendered.rstrip()):
        up_to_words = _render(template, before, closed, False, True)
        # [rendered][words as the template prints them][end of turn, new messages]
        if full.startswith(up_to_words):
            return None, len(up_to_words)
    num_common = _common(have, full)
    return num_common, num_common


def _common(left: str, right: str) -> int:
    """Characters that two texts begin with alike."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle - 1)
    return low
