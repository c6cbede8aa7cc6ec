"""What all orders of programs have in common. Each policy adds an index: how urgent is this program's turn?

Rank, smallest first: starving programs, oldest first. Then those whose deadline presses, the earliest first. Then,
while memory is full, programs that were let in, those that came back to nothing, and new ones, so that one that does
not fit blocks none of those that do. Then the index; then who runs before who waits, for a tie is no reason to change
horses; then arrival.
"""

from collections.abc import Callable
from typing import ClassVar

from ramet.runtime.scheduler.deadlines import presses
from ramet.runtime.scheduler.programs import Program, ProgramTable, Turn
from ramet.runtime.scheduler.sequence import Sequence

Index = Callable[[Program, Turn, float], tuple[float, ...]]
"""Program, its turn, time -> what to order by; the smallest goes first."""
Starving = Callable[[Program, Turn, float], bool]


def never(program: Program, turn: Turn, now_s: float) -> bool:
    """Nobody starves: for policies that order by arrival."""
    return False


class ProgramOrder:
    """Behind the scheduler's order protocol."""

    reads_cache: ClassVar[bool] = False

    def __init__(
        self,
        table: ProgramTable,
        index: Index,
        is_starving: Starving,
        *,
        by_admission: bool = True,
        refresh_s: float = 1.0,
    ) -> None:
        """`by_admission`  programs that were let in go first; False where nothing lets programs in"""
        self._table, self._index, self._is_starving = table, index, is_starving
        self._by_admission, self.refresh_s = by_admission, refresh_s

    @property
    def epoch(self) -> int:
        return self._table.epoch

    def rank(self, seq: Sequence, now_s: float) -> tuple[float, ...]:
        program = self._table.find(seq.program_id)
        turn = program.turns.get(seq.id) if program is not None else None
        if program is None or turn is None:
            return (2.0, seq.arrived_s, seq.arrival)  # a plain request: as a new program
        if self._is_starving(program, turn, now_s):
            return (-1.0, program.arrived_s, seq.arrival)
        if program.due_s is not None and presses(self._table, program, now_s):
            return (-0.5, program.due_s, seq.arrival)
        index = self._index(program, turn, now_s)
        return (self._tier(program, now_s), *index, not seq.is_running, program.arrived_s, seq.arrival)

    def _tier(self, program: Program, now_s: float) -> float:
        """While memory is full, who was let in goes before who was not."""
        if program.is_admitted or not self._by_admission or not self._table.is_full(now_s):
            return 0.0
        return 1.0 if program.num_turns > 1 else 2.0
