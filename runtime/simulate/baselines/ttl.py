"""B5: a program's KV is kept for a time to live after each tool call. Rule of Continuum.

The time maximises F(tau) * (queueing saved + R) - tau over the durations seen (and 0), where F is the tool's own from
100 samples on, else that of all tools, else Exp(1); the fixed variant keeps 2 s. Kept is kept before all else; where
the head of the line can't fit, the latest-arrived kept program is released first. Programs go first come, first
served.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from ramet.radix.node import Node
from ramet.runtime.scheduler.estimator import GapEstimator, Key
from ramet.runtime.scheduler.programs import Gap, Program, ProgramTable, program_of

MIN_SAMPLES = 100
_KEPT = 1e9
HoldSeconds = Callable[[Program, Gap], float]


class TimeToLive:
    """The eviction order: expired by last use, then kept ones, the latest arrival first."""

    name: ClassVar[str] = "ttl"

    def __init__(self, table: ProgramTable, hold_s: HoldSeconds, *, refresh_s: float = 0.05) -> None:
        self._table, self._hold_s, self.refresh_s = table, hold_s, refresh_s
        self._held: dict[str, tuple[Gap, float]] = {}

    def rank(self, node: Node, now: float) -> float:
        ranks = [
            _KEPT - program.arrived_s
            for reader in node.readers
            if (program := self._table.find(program_of(reader))) is not None and self._is_kept(program, now)
        ]
        return max(ranks, default=node.last_used)

    def _is_kept(self, program: Program, now: float) -> bool:
        gap = program.gap
        if gap is None:
            return True  # its next request waits already
        found = self._held.get(program.program_id)
        if found is None or found[0] is not gap:
            found = self._held[program.program_id] = (gap, self._hold_s(program, gap))
        return now - gap.began_s <= found[1]


class SeenDurations(GapEstimator):
    """The estimator that also keeps the durations themselves, which the rule's equation wants."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[Key, list[float]] = {}

    def learn(self, key: Key, duration_s: float) -> None:
        super().learn(key, duration_s)
        for name in (key, ()):
            self._seen.setdefault(name, []).append(duration_s)
            del self._seen[name][:-1000]

    def hold_s(self, key: Key, value_s: float) -> float:
        """argmax over tau of F(tau) V - tau."""
        for name in (key, ()):
            seen = self._seen.get(name, [])
            if len(seen) >= MIN_SAMPLES:
                durations = np.sort(np.array(seen))
                worth = np.arange(1, len(seen) + 1) / len(seen) * value_s - durations
                best = int(worth.argmax())
                return float(durations[best]) if worth[best] > 0 else 0.0
        return max(0.0, math.log(max(value_s, 1e-9)))  # Exp(1): the derivative of (1 - e^-tau) V - tau is 0 here
