"""Conversations kept as they were run: what a template makes of older turns now changes nothing of what was computed.

Some templates write older turns anew once a later one comes (thinking is dropped, a mark moves), and everything behind
the change would be computed again. Where `append_history` is on, a conversation that goes on from an answer of ours
keeps the prompt of that answer to the token, and only what follows is rendered. The model then sees the history as it
was when it wrote it, which is not what the template's author chose: therefore it is an option.
"""

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any


def head_of(messages: Sequence[Mapping[str, Any]], own: Mapping[int, Sequence[int]], given: Mapping[str, Any]) -> str:
    """A digest of a conversation so far. Turns of ours count by their tokens, for clients spell them anew.

    given  what else the template gets: tools, its variables
    """
    said = [list(own[index]) if index in own else message for index, message in enumerate(messages)]
    text = json.dumps([said, given], ensure_ascii=True, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class PastPrompts:
    """What each answer of ours was written behind, to the token. Bounded in tokens; the oldest go first."""

    def __init__(self, *, max_tokens: int = 8_000_000) -> None:
        self._prompts: OrderedDict[tuple[str, str, tuple[int, ...]], array[int]] = OrderedDict()
        self._max_tokens, self._num_tokens = max_tokens, 0

    def remember(self, tenant: str, head: str, turn: Sequence[int], prompt: Sequence[int]) -> None:
        key = (tenant, head, tuple(turn))
        self._num_tokens += len(prompt) - len(self._prompts.pop(key, ()))
        self._prompts[key] = array("I", prompt)
        while self._num_tokens > self._max_tokens:
            self._num_tokens -= len(self._prompts.popitem(last=False)[1])

    def find(self, tenant: str, head: str, turn: Sequence[int]) -> Sequence[int] | None:
        """The prompt of that turn, where it is known for just this conversation."""
        return self._prompts.get((tenant, head, tuple(turn)))
