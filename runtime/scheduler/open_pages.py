"""Pages that are not full yet: the tree shares whole pages only, this shares the rest to the token. Integers only.

Two kinds, both kept under the last whole page of their path (or the namespace, where there is none):
- an *idle tail*: what a finished turn left of its last page. Reclaimable like any page of a gap; it is taken over by
the
  turn that goes on from it, or its head is copied by one that goes elsewhere.
- the *open page* of a running sequence: its computed head may be copied while its owner writes on behind it. A sequence
  whose prompt is still being computed also says what is coming, so that another with the same prompt waits for it.
"""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramet.radix.key import as_tokens, common_prefix
from ramet.runtime.scheduler.sequence import Sequence

PathKey = int | str
"""A page id, or a namespace where the path has no whole page."""

_MAX_LOOKED_AT = 64
"""Running sequences of one path that are compared; the newest first."""


class Tail:
    """The computed head of a page, at rest."""

    __slots__ = ("key", "page", "tokens")

    def __init__(self, key: PathKey, page: int, tokens: NDArray[np.int32]) -> None:
        self.key, self.page, self.tokens = key, page, tokens

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


class OpenHead(NamedTuple):
    page: int
    num_tokens: int
    tail: Tail | None


class OpenPages:
    """See the module."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._worth_waiting = max(1, page_size // 4)
        self._tails: dict[PathKey, list[Tail]] = {}
        self._idle: OrderedDict[Tail, None] = OrderedDict()
        self._running: dict[PathKey, dict[Sequence, None]] = {}
        self._key_of: dict[Sequence, PathKey] = {}

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    # Finding ---------------------------------------------------------------------------------------------------------

    def find(self, key: PathKey, wanted: NDArray[np.int32], num_had: int) -> tuple[OpenHead | None, Sequence | None]:
        """The open page whose head has most of `wanted`; and the running prefill, if there is one, that will soon have
        more of it than that, and than the `num_had` tokens that the tree has."""
        best: OpenHead | None = None
        for tail in self._tails.get(key, ()):
            shared = common_prefix(tail.tokens, wanted)
            if shared > (best.num_tokens if best else 0):
                best = OpenHead(tail.page, shared, tail)
        num_coming, leader = 0, None
        for index, seq in enumerate(reversed(self._running.get(key, {}))):
            if (best is not None and best.num_tokens == len(wanted)) or index == _MAX_LOOKED_AT:
                break
            head, coming = self._compare(seq, wanted)
            if head.num_tokens > (best.num_tokens if best else 0):
                best = head
            if coming > num_coming:
                num_coming, leader = coming, seq
        num_here = max(num_had, best.num_tokens if best else 0)
        is_behind = leader is not None and num_coming - num_here >= self._worth_waiting
        return best, leader if is_behind else None

    def _compare(self, seq: Sequence, wanted: NDArray[np.int32]) -> tuple[OpenHead, int]:
        """What `seq` has of `wanted`, and what it will have when its prompt is computed."""
        start = seq.num_tree_pages * self._page_size
        shared = common_prefix(as_tokens(seq.tokens[start : start + len(wanted)]), wanted)
        num_here = max(0, min(shared, seq.num_shareable - start))
        coming = shared if seq.is_prefilling else num_here
        page = seq.pages[seq.num_tree_pages] if num_here else -1
        return OpenHead(page, num_here, None), coming

    # Idle tails ------------------------------------------------------------------------------------------------------

    def keep(self, tail: Tail) -> list[int]:
        """Keep a tail; the pages that are not needed besides it, or instead of it."""
        siblings = self._tails.setdefault(tail.key, [])
        for other in siblings:
            shared = common_prefix(other.tokens, tail.tokens)
            if shared == tail.num_tokens:
                self._idle.move_to_end(other)
                return [tail.page]
            if shared == other.num_tokens:
                self.take(other)
                self._add(tail)
                return [other.page]
        self._add(tail)
        return []

    def _add(self, tail: Tail) -> None:
        self._tails.setdefault(tail.key, []).append(tail)
        self._idle[tail] = None

    def take(self, tail: Tail) -> None:
        """The caller owns the tail's page from here on."""
        del self._idle[tail]
        siblings = self._tails[tail.key]
        siblings.remove(tail)
        if not siblings:
            del self._tails[tail.key]

    def pop_idle(self, spare: Tail | None) -> Tail | None:
        """Take the tail that was kept longest ago, but not `spare`."""
        for tail in self._idle:
            if tail is not spare:
                self.take(tail)
                return tail
        return None

    def drop(self, key: PathKey) -> list[Tail]:
        """Take all tails of a path whose last page is gone."""
        tails = list(self._tails.get(key, ()))
        for tail in tails:
            self.take(tail)
        return tails

    # Running sequences -----------------------------------------------------------------------------------------------

    def open(self, key: PathKey, seq: Sequence) -> None:
        """`seq` computes behind `key` from now on."""
        self._running.setdefault(key, {})[seq] = None
        self._key_of[seq] = key

    def move(self, seq: Sequence, key: PathKey) -> None:
        if seq in self._key_of:
            self.close(seq)
            self.open(key, seq)

    def close(self, seq: Sequence) -> PathKey | None:
        """`seq` runs no more; the key it was under."""
        key = self._key_of.pop(seq, None)
        if key is not None:
            running = self._running[key]
            del running[seq]
            if not running:
                del self._running[key]
        return key
