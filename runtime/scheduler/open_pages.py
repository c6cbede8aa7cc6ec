"""Pages that are not full yet: the tree shares whole pages only, this shares the rest to the token. Integers only.

Two kinds, both kept under the last whole page of their path:
- an *idle tail* (`tails`): reclaimable like any page of a gap; it is taken over by the turn that goes on from it, or
its
  head is copied by one that goes elsewhere.
- the *open page* of a running sequence: its computed head may be copied while its owner writes on behind it. A sequence
  whose prompt is still being computed also says what is coming, so that another with the same prompt waits for it.
"""

from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramet.radix.key import as_tokens, common_prefix
from ramet.runtime.scheduler.sequence import Sequence
from ramet.runtime.scheduler.tails import MAX_LOOKED_AT, PathKey, Tail, Tails


class OpenHead(NamedTuple):
    page: int
    num_tokens: int
    tail: Tail | None
    """None: a running sequence's."""


class OpenPages:
    """See the module."""

    def __init__(self, page_size: int) -> None:
        self.tails = Tails()
        self._page_size = page_size
        self._worth_waiting = max(1, page_size // 4)
        self._running: dict[PathKey, dict[Sequence, None]] = {}
        self._key_of: dict[Sequence, PathKey] = {}

    def find(self, key: PathKey, wanted: NDArray[np.int32], num_had: int) -> tuple[OpenHead | None, Sequence | None]:
        """The open page whose head has most of `wanted`; and the running prefill, if there is one, that will soon have
        more of it than that, and than the `num_had` tokens that the tree has."""
        match = self.tails.find(key, wanted)
        best = OpenHead(match.tail.page, match.num_tokens, match.tail) if match else OpenHead(-1, 0, None)
        num_coming, leader = 0, None
        for seq in islice(reversed(self._running.get(key, {})), MAX_LOOKED_AT):
            if best.num_tokens == len(wanted):
                break
            head, coming = self._compare(seq, wanted)
            best = head if head.num_tokens > best.num_tokens else best
            if coming > num_coming:
                num_coming, leader = coming, seq
        is_behind = num_coming - max(num_had, best.num_tokens) >= self._worth_waiting
        return best if best.num_tokens else None, leader if is_behind else None

    def _compare(self, seq: Sequence, wanted: NDArray[np.int32]) -> tuple[OpenHead, int]:
        """What `seq` has of `wanted`, and what it will have when its prompt is computed."""
        start = seq.num_tree_pages * self._page_size
        shared = common_prefix(as_tokens(seq.tokens[start : start + len(wanted)]), wanted)
        num_here = max(0, min(shared, seq.num_shareable - start))
        coming = shared if seq.is_prefilling else num_here
        page = seq.pages[seq.num_tree_pages] if num_here else -1
        return OpenHead(page, num_here, None), coming

    def open(self, key: PathKey, seq: Sequence) -> None:
        """`seq` computes behind `key` from now on."""
        self._running.setdefault(key, {})[seq] = None
        self._key_of[seq] = key

    def move(self, seq: Sequence, key: PathKey) -> None:
        """Its path has more whole pages now."""
        if self.close(seq) is not None:
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
