"""A sequence's walk through its grammar: masks for the next places, the advance, forced tokens. Knows no tensors.

A draft is looked up in the mask before it is advanced over, so a grammar state is never asked to follow a token that it
denies; and states are snapshots, so a rejected draft needs no way back. Tags are told once and never taken back: an end
that the next token could still move waits for it.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol, Self, cast

import numpy as np

from ramet.constrained.spec import OneOf, Repeat, Spec, Tagged
from ramet.constrained.spec import Sequence as Sequence_
from ramet.runtime.sampling.masks import Words, num_words

Tag = tuple[str, Literal["begin", "end"], int]
"""(Tagged.name, edge, offset in the output's bytes)."""


class GrammarState(Protocol):
    """Where a grammar stands: immutable, cheap to keep."""

    @property
    def done(self) -> bool: ...
    @property
    def is_dead(self) -> bool: ...
    @property
    def accepting(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def num_bytes(self) -> int: ...
    def advance(self, token: int) -> Self: ...
    def mask(self, out: Words) -> None: ...
    def forced(self) -> Sequence[int]: ...
    def events(self) -> Sequence[tuple[str, str, int]]: ...


class Grammar(Protocol):
    """A compiled grammar, shared by all sequences that use it."""

    def initial(self) -> GrammarState: ...


GrammarCompiler = Callable[[Spec], Grammar]
"""Raises GrammarRefused. Compiles of the same spec are expected to be kept."""


class GrammarWalk:
    """One sequence's place in its grammar."""

    def __init__(
        self, grammar: Grammar, vocabulary_size: int, *, has_tags: bool = False, stop_ids: Collection[int] = ()
    ) -> None:
        """`has_tags`: does any part of the grammar have a name to report? `stop_ids`: the request's own, each of which
        may come where the output satisfies the grammar, and ends it."""
        self._state = grammar.initial()
        self._spoken = self._state  # the last state that is not past the end
        self._has_tags = has_tags
        self._told: list[Tag] = []
        self._num_words = num_words(vocabulary_size)
        self._ahead: list[GrammarState] = []
        self._stop_ids = frozenset(stop_ids)
        self._unstopped: list[int] = []

    @property
    def is_done(self) -> bool:
        """The grammar accepts, and nothing but the end may follow, or has followed."""
        return self._state.done

    @property
    def is_dead(self) -> bool:
        """A token came that the grammar had denied: nothing can follow."""
        return self._state.is_dead

    @property
    def state(self) -> GrammarState:
        """Where the sequence stands now."""
        return self._state

    def forced(self) -> Sequence[int]:
        """The tokens that must follow, as far as they are certain."""
        return self._state.forced()

    def masks(self, drafts: Sequence[int]) -> list[Words]:
        """The mask of the next place, and of those after each draft; it ends at the first draft that is denied."""
        self._ahead = [self._state]
        masks = [self._mask(self._state)]
        for draft in drafts:
            if not is_allowed(masks[-1], draft):
                break
            self._ahead.append(self._ahead[-1].advance(draft))
            masks.append(self._mask(self._ahead[-1]))
        return masks

    def follow(self, drafts: Sequence[int]) -> int:
        """The same without the masks, for which others care: how many of the drafts are allowed."""
        self._ahead = [self._state]
        for draft in drafts:
            after = self._ahead[-1].advance(draft)
            if after.is_dead:
                break
            self._ahead.append(after)
        return len(self._ahead) - 1

    def mask_after(self, num_drafts: int) -> Words:
        """One mask of those that the last `follow` looked ahead over."""
        return self._mask(self._ahead[num_drafts])

    def advance(self, tokens: Sequence[int], num_drafts: int = 0) -> None:
        """Follow tokens. The first `num_drafts` are those that the last `masks` or `follow` looked ahead over."""
        self._unstopped = [
            index
            for index, token in enumerate(tokens[:num_drafts])
            if token in self._stop_ids and not self._ahead[index].accepting
        ]
        if num_drafts:
            self._move(self._ahead[num_drafts])
        for index in range(num_drafts, len(tokens)):
            if tokens[index] in self._stop_ids and not self._state.accepting:
                self._unstopped.append(index)
            self._move(self._state.advance(tokens[index]))
        self._ahead = []

    def unstopped(self) -> Sequence[int]:
        """Indices, among the tokens of the last `advance`, of the request's stop tokens before which the output did not
        satisfy the grammar: there they are text."""
        return self._unstopped

    def new_tags(self) -> list[Tag]:
        """Begins and ends of tagged parts that became certain since the last call."""
        if not self._has_tags:
            return []
        state = self._spoken
        found = [cast(Tag, tuple(event)) for event in state.events()]
        if state.accepting and not (state.done or self._state.ended):
            while found and found[-1][1] == "end" and found[-1][2] == state.num_bytes:
                found.pop()
        if found[: len(self._told)] != self._told:  # another reading took over: what was told can't be taken back
            return []
        new, self._told = found[len(self._told) :], found
        return new

    def _move(self, state: GrammarState) -> None:
        self._state = state
        if not state.ended:
            self._spoken = state

    def _mask(self, state: GrammarState) -> Words:
        words = np.zeros(self._num_words, dtype=np.int32)
        state.mask(words)
        if self._stop_ids and state.accepting:
            for token in self._stop_ids:
                words.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
        return words


def is_allowed(words: Words, token: int) -> bool:
    """Is the token's bit set? Tokens outside the words are not allowed."""
    word, bit = divmod(token, 32)
    return 0 <= word < len(words) and bool((int(words[word]) >> bit) & 1)


def has_tags(spec: Spec) -> bool:
    """Is any part of the spec a Tagged one?"""
    match spec:
        case Tagged():
            return True
        case Sequence_() | OneOf():
            return any(map(has_tags, spec.items))
        case Repeat():
            return has_tags(spec.item)
        case _:
            return False
