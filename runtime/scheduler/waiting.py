"""Sequences that wait to start, in the order of a policy. Knows neither pages nor steps."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from ramet.runtime.scheduler.policies.base import Order
from ramet.runtime.scheduler.sequence import Sequence

_by_rank = attrgetter("rank")


class WaitingRoom:
    """Sorted by rank; a rank is computed on entry, and again when the order says that it is stale."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._line: list[Sequence] = []
        self._ranked_at_s = 0.0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._line)

    def add(self, seq: Sequence, now_s: float) -> None:
        seq.rank = self._order.rank(seq, now_s)
        insort(self._line, seq, key=_by_rank)

    def remove(self, seq: Sequence) -> None:
        self._line.remove(seq)

    def position(self, seq: Sequence) -> int:
        """Its place in line, from 0; without counting those before it."""
        place = bisect_left(self._line, seq.rank, key=_by_rank)
        return self._line.index(seq, place)

    def is_stale(self, now_s: float) -> bool:
        return len(self._line) > 1 and now_s - self._ranked_at_s > self._order.refresh_s

    def rank_again(self, now_s: float) -> None:
        self._ranked_at_s = now_s
        for seq in self._line:
            seq.rank = self._order.rank(seq, now_s)
        self._line.sort(key=_by_rank)

    def oldest_arrival_s(self) -> float | None:
        return min((seq.arrived_s for seq in self._line), default=None)
