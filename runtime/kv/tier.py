"""Decides what goes to the disk tier and what comes back. Integers, keys and a clock's seconds; no tensor, no file.

    at rest in the tree --- when the engine idles, oldest first ---> written
                        \\-- evicted before that, if the line is short -^
    wanted by a prompt, gone from the tree, on disk: read again where that was measured to be faster than computing it

It says so in `PageMove`s, which an executor carries out beside the compute; `Moved` tells what became of them. The
cache owns the pages meanwhile. A page that can't be read is a miss: what follows it is computed.
"""

import itertools
from collections import OrderedDict
from collections.abc import Container, Sequence
from typing import NamedTuple

from ramet.runtime.kv.page_keys import PageKey, extend_keys, root_key
from ramet.runtime.types import Moved, PageMove

_KEEP = 0.9
"""Of a running mean, when a new measurement comes."""
_MAX_WRITING_BYTES = 64 * 2**20
_IDLE_BATCH = 8
"""Pages that are handed over at once when idle: a request that comes waits for no more than their copies."""


class TierCosts:
    """Running means of what only the machine can tell. Unknown until calibrated or measured: then a reload is tried,
    which measures it."""

    def __init__(
        self, *, read_s_per_page: float | None = None, prefill_s_per_token: float | None = None, of: str = ""
    ) -> None:
        """`of`: the model as it is computed here; constants are kept under this name."""
        self.of = of
        self.read_s_per_page, self.prefill_s_per_token = read_s_per_page, prefill_s_per_token

    def is_reload_faster(self, num_pages: int, num_ahead: int, page_size: int) -> bool:
        """For so many pages, where `num_ahead` others wait to be read already."""
        if self.read_s_per_page is None or self.prefill_s_per_token is None:
            return True
        return (num_pages + num_ahead) * self.read_s_per_page < num_pages * page_size * self.prefill_s_per_token

    def note_read(self, seconds: float) -> None:
        self.read_s_per_page = _mean(self.read_s_per_page, seconds)

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        self.prefill_s_per_token = _mean(self.prefill_s_per_token, seconds / num_tokens)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + (1 - _KEEP) * (now - before)


class TierStatistics(NamedTuple):
    """An immutable snapshot."""

    num_unwritten: int
    """Pages at rest that are not on disk."""
    num_in_flight: int
    written_pages_total: int
    read_pages_total: int
    missed_pages_total: int
    """On disk by name, and unusable when read."""
    dropped_pages_total: int
    """Evicted before they could be written."""


class DiskTier:
    """See the module."""

    def __init__(
        self, stored: Container[PageKey], identity: str, page_size: int, page_bytes: int, costs: TierCosts | None = None
    ) -> None:
        """`stored`: which keys are on disk now."""
        self.page_size, self.page_bytes, self.costs = page_size, page_bytes, costs or TierCosts()
        self._stored, self._identity = stored, identity
        self._max_writing = max(4, _MAX_WRITING_BYTES // max(1, page_bytes))
        self._unwritten: OrderedDict[int, PageKey] = OrderedDict()  # page id -> key, longest at rest first
        self._writing: dict[int, PageKey] = {}  # slot -> key
        self._keys_in_work: set[PageKey] = set()
        self._reading: set[int] = set()
        self._slots = itertools.count()
        self._moves: list[PageMove] = []
        self._roots: dict[str, PageKey] = {}
        self._num_written = self._num_read = self._num_missed = self._num_dropped = 0

    # Names -----------------------------------------------------------------------------------------------------------

    def name_pages(self, keys: list[PageKey], tokens: Sequence[int], namespace: str, num_pages: int) -> None:
        """Make `keys` the names of the first `num_pages` pages of `tokens`."""
        root = self._roots.get(namespace)
        if root is None:
            if len(self._roots) > 4096:
                self._roots.clear()
            root = self._roots[namespace] = root_key(self._identity, namespace)
        extend_keys(keys, root, tokens, self.page_size, num_pages)

    def read_s_per_token(self) -> float | None:
        """As it was measured; None where nothing was yet."""
        read_s = self.costs.read_s_per_page
        return None if read_s is None else read_s / self.page_size

    # Writing ---------------------------------------------------------------------------------------------------------

    def rests(self, pages: Sequence[int], keys: Sequence[PageKey]) -> None:
        """Pages of the tree that a turn has just left: they will be written when there is time."""
        for page, key in zip(pages, keys, strict=True):
            if key not in self._stored and key not in self._keys_in_work:
                self._unwritten[page] = key
                self._unwritten.move_to_end(page)

    def leaves(self, pages: Sequence[int]) -> None:
        """Pages that are about to be free: now or never. Their bytes are taken before the step computes anything."""
        for page in pages:
            key = self._unwritten.pop(page, None)
            if key is None or key in self._stored:
                continue
            if len(self._writing) < self._max_writing:
                self._write(page, key)
            else:
                self._num_dropped += 1

    def write_some(self) -> None:
        """For idle time: hand over a few."""
        for _ in range(_IDLE_BATCH):
            if not self._unwritten or len(self._writing) >= self._max_writing:
                return
            page, key = self._unwritten.popitem(last=False)
            if key not in self._stored:
                self._write(page, key)

    def distrust(self) -> None:
        """A step failed: what the pool holds is not written any more."""
        self._unwritten.clear()
        kept = [move for move in self._moves if move.direction == "from_disk"]
        for move in self._moves:
            if move.direction == "to_disk":
                self._keys_in_work.discard(self._writing.pop(move.slot))
        self._moves = kept

    def _write(self, page: int, key: PageKey) -> None:
        if key in self._keys_in_work:
            return
        slot = next(self._slots)
        self._writing[slot] = key
        self._keys_in_work.add(key)
        self._moves.append(PageMove(page, slot, "to_disk", key))

    # Reading ---------------------------------------------------------------------------------------------------------

    def num_worth_reading(self, keys: Sequence[PageKey]) -> int:
        """Of the leading `keys` on disk, how many to read now: all, or none."""
        num_there = next((at for at, key in enumerate(keys) if key not in self._stored), len(keys))
        if num_there and self.costs.is_reload_faster(num_there, len(self._reading), self.page_size):
            return num_there
        return 0

    def read(self, pages: Sequence[int], keys: Sequence[PageKey]) -> list[int]:
        """Have them read into `pages`; the slots under which `Moved` will tell of them."""
        slots = [next(self._slots) for _ in pages]
        self._reading.update(slots)
        self._moves += [PageMove(p, s, "from_disk", key) for p, s, key in zip(pages, slots, keys, strict=True)]
        return slots

    # With the executor -----------------------------------------------------------------------------------------------

    def take_moves(self) -> list[PageMove]:
        """What was decided since the last call."""
        moves, self._moves = self._moves, []
        return moves

    def note(self, moved: Moved) -> None:
        key = self._writing.pop(moved.slot, None)
        if key is not None:
            self._keys_in_work.discard(key)
            self._num_written += moved.is_done
            return
        self._reading.discard(moved.slot)
        self._num_read += moved.is_done
        self._num_missed += not moved.is_done
        if moved.is_done:
            self.costs.note_read(moved.seconds)

    @property
    def is_reading(self) -> bool:
        return bool(self._reading)

    @property
    def is_behind(self) -> bool:
        """Is there something to write, or being written?"""
        return bool(self._unwritten or self._writing or self._moves)

    def statistics(self) -> TierStatistics:
        return TierStatistics(
            len(self._unwritten),
            len(self._writing) + len(self._reading),
            self._num_written,
            self._num_read,
            self._num_missed,
            self._num_dropped,
        )
