"""Who owns which page of the KV pool. Integers only: knows neither the bytes nor what is in them.

A stack of free page ids and, for each page, where in the stack it stands: taking one page or a thousand, or one certain
page, costs nothing but the move. Pages that were never used lie in rising order, so a prompt gets a run of neighbours,
which attention on CPUs reads in place.

Page 0 is reserved by default: padded rows of captured graphs and unused page-table entries point at it, and nothing in
it is ever read.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class OutOfPages(Exception):
    """Fewer pages are free than were asked for; nothing has changed. The scheduler evicts, or waits."""

    def __init__(self, wanted: int, num_free: int) -> None:
        super().__init__(f"expected {wanted} free pages, have {num_free}")
        self.wanted, self.num_free = wanted, num_free


class AllocatorStatistics(NamedTuple):
    """An immutable snapshot, in pages."""

    num_pages: int
    """That can be handed out: without the reserved ones."""
    num_free: int
    num_used: int


class PageAllocator:
    """Hands out page ids [num_reserved, num_pages + num_reserved)."""

    def __init__(self, num_pages: int, *, num_reserved: int = 1) -> None:
        """`num_pages` pages to hand out, besides `num_reserved` at the front that never are: a pool for this allocator
        holds `pool_pages` pages."""
        if num_pages < 1 or num_reserved < 0:
            raise ValueError(f"expected at least one page and no negative reserve, got {num_pages}, {num_reserved}")
        self.num_pages, self.num_reserved = num_pages, num_reserved
        self._stack: NDArray[np.int32] = np.arange(num_pages + num_reserved - 1, num_reserved - 1, -1, dtype=np.int32)
        self._place: NDArray[np.int32] = np.full(self.pool_pages, -1, np.int32)  # in the stack; -1: in use
        self._place[self._stack] = np.arange(num_pages)
        self._num_free = num_pages

    @property
    def pool_pages(self) -> int:
        """Pages that the pool must have."""
        return self.num_pages + self.num_reserved

    @property
    def num_free(self) -> int:
        return self._num_free

    def alloc(self, num_pages: int, *, after: int | None = None) -> list[int]:
        """`num_pages` page ids, ascending; first the neighbours that follow page `after`, as far as they are free.
        Raises OutOfPages, and then nothing has changed."""
        if num_pages > self._num_free:
            raise OutOfPages(num_pages, self._num_free)
        if num_pages == 1:
            return [self._take_one(after)]
        near = self._take_following(num_pages, after) if after is not None else []
        rest = self._stack[self._num_free - (num_pages - len(near)) : self._num_free]
        self._num_free -= len(rest)
        self._place[rest] = -1
        return [*near, *np.sort(rest).tolist()]

    def free(self, pages: Sequence[int] | NDArray[np.int32]) -> None:
        """Give pages back. A page that is free already, is reserved, or comes twice is a bug of ours and raises
        AssertionError before anything has changed."""
        given = np.asarray(pages, dtype=np.int32)
        if not len(given):
            return
        assert given.min() >= self.num_reserved and given.max() < self.pool_pages, f"not pages of this pool: {pages}"
        assert (self._place[given] == -1).all(), f"freed twice: {given[self._place[given] != -1].tolist()}"
        given = np.sort(given)[::-1]
        assert (given[1:] != given[:-1]).all(), f"freed twice in one call: {pages}"
        top = self._num_free + len(given)
        self._stack[self._num_free : top] = given
        self._place[given] = np.arange(self._num_free, top)
        self._num_free = top

    def is_free(self, page: int) -> bool:
        return bool(self._place[page] >= 0)

    def statistics(self) -> AllocatorStatistics:
        return AllocatorStatistics(self.num_pages, self._num_free, self.num_pages - self._num_free)

    def _take_one(self, after: int | None) -> int:
        """What a decoding sequence asks for."""
        if after is not None and after + 1 < self.pool_pages and self._place[after + 1] >= 0:
            self._take_from_inside(after + 1)
            return after + 1
        self._num_free -= 1
        page = int(self._stack[self._num_free])
        self._place[page] = -1
        return page

    def _take_following(self, num_pages: int, after: int) -> list[int]:
        taken: list[int] = []
        page = after + 1
        while len(taken) < num_pages and page < self.pool_pages and self._place[page] >= 0:
            self._take_from_inside(page)
            taken.append(page)
            page += 1
        return taken

    def _take_from_inside(self, page: int) -> None:
        """The top of the stack fills the hole that `page` leaves."""
        self._num_free -= 1
        top, place = self._stack[self._num_free], self._place[page]
        self._stack[place] = top
        self._place[top] = place
        self._place[page] = -1
