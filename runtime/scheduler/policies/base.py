"""Who goes first. One protocol; each policy is a file that knows nothing of the others."""

from typing import Protocol

from ramet.runtime.scheduler.sequence import Sequence


class Order(Protocol):
    """The smallest rank is admitted first, the largest steps back first when pages run out."""

    @property
    def refresh_s(self) -> float:
        """For how many seconds a waiting sequence's rank stays good enough; infinite where only `look` may change
        it."""
        ...

    @property
    def epoch(self) -> int:
        """Moves on when something happened to the ranks of all: who waits is ranked again at once, however fresh."""
        ...

    @property
    def reads_cache(self) -> bool:
        """Ranks depend on `seq.num_matched`: the scheduler then looks up what waits before it ranks."""
        ...

    def rank(self, seq: Sequence, now_s: float) -> tuple[float, ...]: ...
