"""Choices scored in one pass over their token trie. Counts and ids; what the numbers mean is `runtime.selection`'s.

The trie hangs below the last token of the text. Each of its inner tokens is computed once, whatever the number of
choices that go through it; at each, the logprobs of all tokens that follow it in some choice are read
(`PlannedRow.follower_at`).

    text ... [root] ── yes ── <end>          row      root yes no  pe
                    └─ no ─── <end>          parents   -1   0  0   2
                         └─── pe ── <end>    followers yes@0 no@0 end@1 end@2 pe@2 end@3
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import NamedTuple

from ramet.runtime.scheduler.sequence import Ending, Request, Sequence
from ramet.runtime.types import Event, PlannedRow, SampledRow, TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a scoring request asks."""

    choices: Tokens[Tokens[int]]
    """Token ids of each, after the request's tokens."""
    end_ids: Tokens[int]
    """Read after each choice, where its end counts."""
    max_row_tokens: int
    """More choices than fit in a row of so many tokens are scored in several."""


class Scores(NamedTuple):
    """Of one choice."""

    tokens: list[TokenLogprob]
    ends: list[TokenLogprob]
    """Of each end id, after the last token."""


@dataclass(slots=True)
class TriePass:
    """Some of the choices as one row. Token 0 is the root, the last of the text."""

    tokens: list[int] = field(default_factory=list)
    """After the root."""
    parents: list[int] = field(default_factory=lambda: [-1])
    followers: list[int] = field(default_factory=list)
    follower_at: list[int] = field(default_factory=list)
    reads: list[tuple[int, list[int], list[int]]] = field(default_factory=list)
    """Choice, places of its tokens in `followers`, places of its ends."""
    _child: dict[tuple[int, int], int] = field(default_factory=dict)
    _place: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, index: int, choice: Tokens[int], end_ids: Tokens[int]) -> None:
        node, places = 0, []
        for depth, token in enumerate(choice):
            places.append(self._follow(node, token))
            if depth + 1 < len(choice) or end_ids:
                node = self._descend(node, token)
        self.reads.append((index, places, [self._follow(node, end) for end in end_ids]))

    def num_new_tokens(self, choice: Tokens[int]) -> int:
        """Tokens that the row grows by with this choice, at most."""
        node = 0
        for depth, token in enumerate(choice):
            child = self._child.get((node, token))
            if child is None:
                return len(choice) - depth
            node = child
        return 0

    def _follow(self, node: int, token: int) -> int:
        place = self._place.setdefault((node, token), len(self.followers))
        if place == len(self.followers):
            self.followers.append(token)
            self.follower_at.append(node)
        return place

    def _descend(self, node: int, token: int) -> int:
        child = self._child.setdefault((node, token), len(self.parents))
        if child == len(self.parents):
            self.tokens.append(token)
            self.parents.append(node)
        return child


def passes(choices: Choices) -> list[TriePass]:
    """All choices, in as few rows as `max_row_tokens` allows."""
    made = [TriePass()]
    for index, choice in enumerate(choices.choices):
        if made[-1].reads and 1 + len(made[-1].tokens) + made[-1].num_new_tokens(choice) > choices.max_row_tokens:
            made.append(TriePass())
        made[-1].add(index, choice, choices.end_ids)
    return made


class Scoring(Sequence):
    """A sequence that samples nothing: its text is computed up to the last token, then its choices are scored."""

    __slots__ = ("_done", "_longest", "_passes", "scores")

    def __init__(self, request: Request, arrived_s: float, choices: Choices) -> None:
        super().__init__(request, arrived_s)
        self._passes = passes(choices)
        self._done = 0
        self._longest = max(len(choice) for choice in choices.choices)
        self.scores: dict[int, Scores] = {}
        """By choice, once they are known."""

    @property
    def num_row_tokens(self) -> int:
        return self.num_prompt + max(len(each.tokens) for each in self._passes)

    @property
    def num_positions(self) -> int:
        return self.num_prompt + self._longest

    def limit_chunk(self, num_tokens: int) -> int:
        ends_prompt = self.num_computed + num_tokens == self.num_tokens
        return num_tokens - 1 if ends_prompt and num_tokens > 1 else num_tokens

    @property
    def needs_extra(self) -> bool:
        return True

    def fit_extra(self, room: int) -> int:
        """All of the pass or nothing: a trie is not cut, and its size was bounded when it was made."""
        return len(self._passes[self._done].tokens) if self.num_pending == 1 else 0

    def row(self, num_tokens: int, num_extra: int) -> PlannedRow:
        start, end = self.num_computed, self.num_computed + num_tokens
        if end < self.num_tokens:
            return PlannedRow(self.id, self.tokens[start:end], start, self.pages)
        trie = self._passes[self._done]
        tokens = [self.tokens[start], *trie.tokens]
        return PlannedRow(
            self.id,
            tokens,
            start,
            self.pages,
            num_logprobs=len(trie.followers),
            followers=trie.followers,
            parents=trie.parents,
            follower_at=trie.follower_at,
        )

    def num_confirmed(self, num_extra: int, row: SampledRow) -> int:
        """The row's slots are a tree's, root included: the next pass writes them again."""
        return -1 if row.follower_logprobs else 0

    def take(self, row: SampledRow, num_extra: int, now_s: float) -> list[Event] | Ending:
        if not row.follower_logprobs:
            return []
        if self.first_token_s is None:
            self.first_token_s = now_s
        for index, places, ends in self._passes[self._done].reads:
            found = row.follower_logprobs
            self.scores[index] = Scores([found[place] for place in places], [found[place] for place in ends])
        self._done += 1
        return Ending("stop") if self._done == len(self._passes) else []


def sequence_of(request: Request, arrived_s: float) -> Sequence:
    """A request's record: one that generates, or one that scores."""
    if isinstance(request.choices, Choices):
        return Scoring(request, arrived_s, request.choices)
    return Sequence(request, arrived_s)
