"""Sequences that wait to start, in the order of a policy. Knows neither pages nor steps."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter

from ramet.runtime.scheduler.policies.base import Order
from ramet.runtime.scheduler.sequence import Sequence

_by_rank = attrgetter("rank")


NUM_SLICES = 16
"""Ranks that go stale with time are made anew a slice of the line at a time, so that no step pays for all of it."""


class WaitingRoom:
    """Sorted by rank; a rank is computed on entry, and again when the order says that it is stale."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._line: list[Sequence] = []
        self._round: dict[Sequence, None] = {}
        """Who is still to be ranked again before all have been."""
        self._ranked_at_s, self._epoch = 0.0, order.epoch

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._line)

    def add(self, seq: Sequence, now_s: float) -> None:
        seq.rank = self._order.rank(seq, now_s)
        insort(self._line, seq, key=_by_rank)

    def remove(self, seq: Sequence) -> None:
        self._line.remove(seq)
        self._round.pop(seq, None)

    def position(self, seq: Sequence) -> int:
        """Its place in line, from 0; without counting those before it."""
        place = bisect_left(self._line, seq.rank, key=_by_rank)
        return self._line.index(seq, place)

    def is_stale(self, now_s: float) -> bool:
        if len(self._line) < 2:
            return False
        is_old = now_s - self._ranked_at_s > self._order.refresh_s / self._num_slices
        return is_old or self._epoch != self._order.epoch

    def rank_again(self, now_s: float) -> None:
        """As many as the time since the last call asks for; all, where something has happened to all."""
        elapsed_s, refresh_s = now_s - self._ranked_at_s, self._order.refresh_s
        self._ranked_at_s = now_s
        if elapsed_s >= refresh_s or self._num_slices == 1 or self._epoch != self._order.epoch:
            self._epoch = self._order.epoch
            chosen = self._line
            self._round.clear()
        else:
            chosen = self._next_of_round(math.ceil(len(self._line) * elapsed_s / refresh_s))
        for seq in chosen:
            seq.rank = self._order.rank(seq, now_s)
        self._line.sort(key=_by_rank)

    @property
    def _num_slices(self) -> int:
        """Orders that read the cache look a bounded number up at each time: those go all at once."""
        return 1 if self._order.reads_cache else NUM_SLICES

    def _next_of_round(self, count: int) -> list[Sequence]:
        if not self._round:
            self._round = dict.fromkeys(self._line)
        chosen = list(islice(self._round, count))
        for seq in chosen:
            del self._round[seq]
        return chosen

    def oldest_arrival_s(self) -> float | None:
        return min((seq.arrived_s for seq in self._line), default=None)
