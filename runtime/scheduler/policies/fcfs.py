"""First come, first served."""

import math
from typing import ClassVar

from ramet.runtime.scheduler.sequence import Sequence


class FirstComeFirstServed:
    """By arrival; a higher priority of the program goes before. A preempted turn keeps its place."""

    refresh_s: ClassVar[float] = math.inf
    epoch: ClassVar[int] = 0
    reads_cache: ClassVar[bool] = False

    def rank(self, seq: Sequence, now_s: float) -> tuple[float, ...]:
        return (-seq.program.priority, seq.arrived_s, seq.arrival)
