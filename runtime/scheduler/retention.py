"""What the KV of a waiting program is worth, and so in which order it goes. Prices; never locks.

Holding a gap is worth it while I = H(t) V / u >= the price of a resident token-second: H the effective hazard of its
return (estimator.py), V the seconds that its KV saves, u the tokens that only it reads. Under pressure the lowest I
goes first, whatever the price is; the last I that went is the price. Of one node:

    I = sum over the programs that will read it of  H(t) * weight * (R(node) / |node|  +  Q / u if it is whole still)

R: seconds to compute the node again. Q: the extra wait of a program that comes back to nothing, paid once per return;
so the first page lost costs most, and one victim is finished before the next is opened. A node that nobody waits for is
valued by its age: H = 1 / (1 + age), the break-even rule.
"""

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from ramet.radix.node import Node
from ramet.runtime.scheduler.deadlines import WORTH, presses
from ramet.runtime.scheduler.estimator import EDGES, NUM_BINS
from ramet.runtime.scheduler.programs import Gap, Program, ProgramTable, State, program_of

RebuildSeconds = Callable[[int, int], float]
"""Seconds to compute tokens [start, end) of a context."""

_FIRST_EDGE, _LAST_EDGE = float(EDGES[1]), float(EDGES[-1])
_BINS_PER_LOG = (NUM_BINS - 2) / math.log(_LAST_EDGE / _FIRST_EDGE)
AGE_SHARE, LONGEST_S = 0.1, 5.0
"""A gap's bins are even in the logarithm of its length, a third apart: a rank is good for a tenth of what was waited,
so far as prices stand, which are looked at again after so many seconds."""
RETURNING_HAZARD = 10.0
"""1/s, of a program whose turn is queued or whose other branch runs: it reads its KV very soon."""


class RetentionOrder:
    """The eviction order by I."""

    name: ClassVar[str] = "retention"

    def __init__(
        self,
        table: ProgramTable,
        rebuild_s: RebuildSeconds,
        *,
        extra_wait_s: Callable[[], float] = lambda: 2.0,
        refresh_s: float = 0.05,
    ) -> None:
        """`extra_wait_s`  Q, as it is measured; `refresh_s`  for how long a rank is good enough"""
        self.refresh_s = refresh_s
        self._extra_wait_s = extra_wait_s
        self._table, self._rebuild_s = table, rebuild_s
        self._tables: dict[str, tuple[Gap, _Known]] = {}

    def rank(self, node: Node, now: float) -> float:
        if node.is_superseded:
            return -1.0
        num_tokens = len(node.label)
        rebuild_s = self._rebuild_s(node.start, node.end) / num_tokens
        if not node.readers:
            return rebuild_s * node.value / (1.0 + max(0.0, now - node.last_used))
        worth = 0.0
        for reader in node.readers:
            program = self._table.find(program_of(reader))
            if program is not None:
                wait_s = (
                    self._extra_wait_s() / max(1, program.unshared_tokens) if node.end >= program.held_tokens else 0.0
                )
                worth += self.hazard(program, now) * self._weight(program, now) * (rebuild_s + wait_s)
        return worth * node.value

    def good_for_s(self, node: Node, now: float) -> float:
        """For a tenth of the age of the youngest gap that it is kept for."""
        age_s = LONGEST_S / AGE_SHARE if node.readers else now - node.last_used
        for reader in node.readers:
            program = self._table.find(program_of(reader))
            if program is not None and program.gap is not None:
                age_s = min(age_s, now - program.gap.began_s)
        return min(LONGEST_S, max(self.refresh_s, AGE_SHARE * age_s))

    def saved_s(self, program: Program) -> float:
        """V: the seconds that a program's own KV saves when it returns."""
        start = max(0, program.held_tokens - program.unshared_tokens)
        return self._rebuild_s(start, program.held_tokens) + self._extra_wait_s()

    def index(self, program: Program, now: float) -> float:
        """I of a whole program, 1/token."""
        rate = self.hazard(program, now) * self._weight(program, now)
        return rate * self.saved_s(program) / max(1, program.unshared_tokens)

    def _weight(self, program: Program, now: float) -> float:
        """Priority, and a deadline that presses."""
        return program.weight * WORTH if presses(self._table, program, now) else program.weight

    def hazard(self, program: Program, now: float) -> float:
        """H of the program's return, 1/s."""
        gap = program.gap
        if gap is None:
            return RETURNING_HAZARD if program.state is not State.DONE else 0.0
        table = self._known(program.program_id, gap)
        waited_s = max(0.0, now - gap.began_s)
        if gap.expected_s is None or gap.expected_s <= 0.0:
            return table.effective[elapsed_bin(waited_s)]
        stretch = table.mean_s / gap.expected_s  # the hint says how long, the table says how it scatters
        return table.effective[elapsed_bin(waited_s * stretch)] * stretch

    def chance_to_return(self, program: Program, within_s: float, now: float) -> float:
        """P(the gap ends within so many seconds | it has lasted so long)."""
        gap = program.gap
        if gap is None:
            return 1.0
        table = self._known(program.program_id, gap)
        waited_s = max(0.0, now - gap.began_s)
        alive, later = table.survival[elapsed_bin(waited_s)], table.survival[elapsed_bin(waited_s + within_s)]
        return 1.0 - later / alive if alive > 0 else 0.0

    def _known(self, program_id: str, gap: Gap) -> "_Known":
        """Looked up once per gap: what is learned while it lasts changes little."""
        found = self._tables.get(program_id)
        if found is not None and found[0] is gap:
            return found[1]
        if len(self._tables) > 4 * len(self._table) + 64:
            self._tables.clear()
        table = self._table.estimator.table(gap.key)
        known = _Known(table.effective.tolist(), table.survival.tolist(), float(table.mean_left_s[0]))
        self._tables[program_id] = (gap, known)
        return known


class _Known(NamedTuple):
    """A hazard table as plain floats: read one at a time, they are faster than arrays."""

    effective: list[float]
    survival: list[float]
    mean_s: float


def elapsed_bin(elapsed_s: float) -> int:
    """The estimator's bin of an elapsed time, without a search."""
    if elapsed_s < _FIRST_EDGE:
        return 0
    return min(NUM_BINS - 1, 1 + int(math.log(elapsed_s / _FIRST_EDGE) * _BINS_PER_LOG + 1e-9))
