"""B4: hold a paused call while holding wastes less memory-time than computing it again would. Rule of InferCept.

Waste of holding: (time already waited, which stands for the time to come) * c. Waste of discarding, recomputed in
chunks: T(c) * c / 2, for the call itself holds memory while it is rebuilt. The ratio orders the victims; one tier, so
nothing is swapped. Calls resume by the original arrival of their program.
"""

import math
from collections.abc import Callable
from typing import ClassVar

from ramet.radix.node import Node
from ramet.runtime.scheduler.programs import Program, ProgramTable, program_of


class MinWaste:
    """The eviction order: discard waste / hold waste, smallest first."""

    name: ClassVar[str] = "min_waste"

    def __init__(self, table: ProgramTable, rebuild_s: Callable[[int, int], float], *, refresh_s: float = 0.05) -> None:
        self._table, self._rebuild_s, self.refresh_s = table, rebuild_s, refresh_s

    def rank(self, node: Node, now: float) -> float:
        programs = [program for reader in node.readers if (program := self._table.find(program_of(reader))) is not None]
        if not programs:
            return node.last_used - 1e9
        return max(self._ratio(program, now) for program in programs)

    def _ratio(self, program: Program, now: float) -> float:
        if program.gap is None:
            return math.inf
        waited_s = max(1e-3, now - program.gap.began_s)
        return self._rebuild_s(0, program.held_tokens) / 2 / waited_s
