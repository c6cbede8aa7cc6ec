"""B6: programs are paused and resumed by a tick, smallest first, so that the contexts of the active ones fit. Rule of
ThunderAgent.

Every 5 s: remaining = M - (contexts of active programs) - 100 tokens each. Resume, smallest first, returning programs,
then new ones, then acting (in a tool call) ones, while the sum fits; a program waiting for 1,800 s is resumed anyway.
Then, while remaining < 0, pause the smallest acting program, else mark the smallest reasoning one to pause after its
call. When resuming, an acting program's context weighs 2^-t after t seconds. Least recently used eviction.
"""

from typing import ClassVar

from ramet.runtime.scheduler.admission import Admission
from ramet.runtime.scheduler.programs import Program, ProgramTable
from ramet.runtime.scheduler.sequence import Sequence
from ramet.runtime.types import Failed

TICK_S = 5.0
DECODE_BUFFER = 100
FORCED_RESUME_S = 1800.0


class PausedPrograms:
    """Behind the admission protocol: a turn starts if its program is active (`is_admitted`)."""

    name: ClassVar[str] = "pause"

    def __init__(self, pages: Admission, table: ProgramTable) -> None:
        self._pages, self._table = pages, table
        self._next_tick_s = 0.0
        self._marked: set[str] = set()

    @property
    def max_step_tokens(self) -> int:
        return self._pages.max_step_tokens

    @property
    def max_running(self) -> int:
        return self._pages.max_running

    @property
    def prefill_share(self) -> float:
        return self._pages.prefill_share

    def may_start(self, seq: Sequence, num_new_pages: int, num_leased: int, num_available: int, num_pages: int) -> bool:
        program = self._table.find(seq.program_id)
        if program is not None and not program.is_admitted:
            return False
        return self._pages.may_start(seq, num_new_pages, num_leased, num_available, num_pages)

    def refusal(self, seq: Sequence, num_missing: int) -> Failed | None:
        return self._pages.refusal(seq, num_missing)

    def growth(self, seq: Sequence) -> int:
        return self._pages.growth(seq)

    def lets_pass(self, seq: Sequence) -> bool:
        return False

    def before_step(self, now: float) -> None:
        """The tick, when it is due."""
        if now >= self._next_tick_s:
            self._next_tick_s = now + TICK_S
            self._resume(now)
            self._pause(now)
            self._table.refuse(float("inf"))  # who is paused always stands behind who is not

    def _resume(self, now: float) -> None:
        remaining = self._remaining(now, decayed=True)
        paused = [program for program in self._table if not program.is_admitted]
        for program in sorted(paused, key=lambda program: (_resume_class(program), size(program))):
            need = size(program) + DECODE_BUFFER
            if need <= remaining or _waits_since(program, now) > FORCED_RESUME_S:
                program.is_admitted = True
                remaining -= need

    def _pause(self, now: float) -> None:
        remaining = self._remaining(now, decayed=False)
        active = sorted((each for each in self._table if each.is_admitted), key=size)
        for program in [each for each in active if each.state.is_gap]:
            if remaining >= 0:
                return
            program.is_admitted = False
            remaining += size(program) + DECODE_BUFFER
        for program in active:
            if remaining >= 0 or program.state.is_gap:
                continue
            if not program.state.is_running:
                program.is_admitted = False
            remaining += size(program) + DECODE_BUFFER  # a running one leaves with the end of its call

    def _remaining(self, now: float, *, decayed: bool) -> float:
        total = 0.0
        for program in self._table:
            if program.is_admitted:
                acting_s = now - program.gap.began_s if decayed and program.gap is not None else 0.0
                total += (size(program) + DECODE_BUFFER) * 2.0 ** -min(acting_s, 60.0)
        return self._table.pool_tokens - total


def size(program: Program) -> int:
    """Context tokens: of its last turn, or of the prompt that waits."""
    return max([program.context_tokens, *(turn.prompt_tokens for turn in program.turns.values())])


def _resume_class(program: Program) -> int:
    if program.state.is_gap:
        return 2
    return 0 if program.num_turns > 1 else 1


def _waits_since(program: Program, now: float) -> float:
    return max((now - turn.queued_at_s for turn in program.turns.values()), default=0.0)
