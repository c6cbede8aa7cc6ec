"""What finished turns left of their last pages, less than a page each. Integers only.

A tail lies behind the last whole page of its path and is kept under that page's id (or under the namespace, where there
is none). Turns that go on from a tail begin with all of it, so tails are looked up by content; those that leave it half
way share a part, which is looked for among the newest.
"""

from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramet.radix.key import common_prefix

PathKey = int | str
"""A page id, or a namespace where the path has no whole page."""

MAX_LOOKED_AT = 64
"""Owners behind one page that are compared token by token; the newest first."""


class Tail:
    """The computed head of a page, at rest."""

    __slots__ = ("content", "key", "page", "tokens")

    def __init__(self, key: PathKey, page: int, tokens: NDArray[np.int32]) -> None:
        self.key, self.page, self.tokens = key, page, tokens
        self.content = tokens.tobytes()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


class TailMatch(NamedTuple):
    tail: Tail
    num_tokens: int
    """Leading tokens of the tail that are wanted."""


class Tails:
    """See the module."""

    def __init__(self) -> None:
        self._behind: dict[PathKey, dict[bytes, Tail]] = {}
        self._oldest_first: OrderedDict[Tail, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._oldest_first)

    def find(self, key: PathKey, wanted: NDArray[np.int32]) -> TailMatch | None:
        """The tail that begins with most of `wanted`."""
        siblings = self._behind.get(key)
        if siblings is None:
            return None
        best = self._longest_inside(siblings, wanted)
        for tail in islice(reversed(siblings.values()), MAX_LOOKED_AT):
            if best is not None and best.num_tokens == len(wanted):
                break
            shared = common_prefix(tail.tokens, wanted)
            if shared > (best.num_tokens if best else 0):
                best = TailMatch(tail, shared)
        return best

    def _longest_inside(self, siblings: dict[bytes, Tail], wanted: NDArray[np.int32]) -> TailMatch | None:
        """The longest tail that `wanted` begins with."""
        if len(siblings) <= MAX_LOOKED_AT:
            return None  # they are all looked at anyway
        content, width = wanted.tobytes(), wanted.itemsize
        for num_tokens in range(len(wanted), 0, -1):
            tail = siblings.get(content[: num_tokens * width])
            if tail is not None:
                return TailMatch(tail, num_tokens)
        return None

    def keep(self, tail: Tail) -> list[int]:
        """Keep a tail; the pages that are not needed beside it, or instead of it."""
        siblings = self._behind.get(tail.key, {})
        longer = self._that_begins_with(siblings, tail)
        if longer is not None:
            self._oldest_first.move_to_end(longer)
            return [tail.page]
        width = tail.tokens.itemsize
        heads = (siblings.get(tail.content[: num_tokens * width]) for num_tokens in range(1, tail.num_tokens))
        replaced = [head for head in heads if head is not None]
        for head in replaced:
            self.take(head)
        self._behind.setdefault(tail.key, {})[tail.content] = tail
        self._oldest_first[tail] = None
        return [head.page for head in replaced]

    def _that_begins_with(self, siblings: dict[bytes, Tail], tail: Tail) -> Tail | None:
        same = siblings.get(tail.content)
        if same is not None:
            return same
        newest = islice(reversed(siblings.values()), MAX_LOOKED_AT)
        return next((other for other in newest if other.content.startswith(tail.content)), None)

    def take(self, tail: Tail) -> None:
        """The caller owns the tail's page from here on."""
        del self._oldest_first[tail]
        siblings = self._behind[tail.key]
        del siblings[tail.content]
        if not siblings:
            del self._behind[tail.key]

    def take_oldest(self, spare: Tail | None) -> Tail | None:
        """The tail that was kept longest ago, but not `spare`."""
        tail = next((each for each in islice(self._oldest_first, 2) if each is not spare), None)
        if tail is not None:
            self.take(tail)
        return tail

    def take_behind(self, key: PathKey) -> list[Tail]:
        """All tails of a path whose last page is gone."""
        tails = list(self._behind.get(key, {}).values())
        for tail in tails:
            self.take(tail)
        return tails
