"""Four programs of a few calls on two slots, in unit steps: the process table's smallest test.

Ties decide it: a clairvoyant order that breaks them well reaches a total wait of 7, and each rule here breaks them by
who became ready first, or by who runs.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ramet.runtime.scheduler.gittins import service_level

CALLS = ((4, 3, 1, 1), (3, 3, 4), (1, 2), (4,))
"""Steps of each call of each program; a program's calls come one after the other, the first at time 0."""
NUM_SLOTS = 2
QUANTUM = 2.0
"""Ours: service of the first level, in steps."""


@dataclass(slots=True, eq=False)
class ToyProgram:
    place: int
    calls: tuple[int, ...]
    call: int = 0
    done_in_call: int = 0
    finished_calls: int = 0
    """Steps of its finished calls."""
    ready_at: float = 0.0
    """When its present call arrived."""
    ran_last: bool = False

    @property
    def attained(self) -> int:
        return self.finished_calls + self.done_in_call


Rank = Callable[[ToyProgram], tuple[float, ...]]


def toy_waits() -> dict[str, float]:
    """Total wait under each rule."""
    return {
        "fcfs": toy_wait(lambda p: (p.ready_at, p.place), preempts=False),
        "plas": toy_wait(lambda p: (p.finished_calls, p.ready_at, p.place), preempts=False),
        "las_unit_quantum": toy_wait(lambda p: (p.attained, not p.ran_last, p.place), preempts=True),
        "ours": toy_wait(lambda p: (service_level(p.attained, QUANTUM), not p.ran_last, p.place), preempts=True),
    }


def toy_wait(rank: Rank, *, preempts: bool) -> float:
    """Sum of completions less the work. Without preemption a call that began keeps its slot."""
    programs = [ToyProgram(place, calls) for place, calls in enumerate(CALLS)]
    now, completions = 0, 0
    while any(program.call < len(program.calls) for program in programs):
        for program in _chosen(programs, rank, preempts):
            completions += _step(program, now)
        now += 1
    return float(completions - sum(map(sum, CALLS)))


def _chosen(programs: list[ToyProgram], rank: Rank, preempts: bool) -> list[ToyProgram]:
    """Who runs this step; notes it in `ran_last`."""
    live = [program for program in programs if program.call < len(program.calls)]
    line = sorted(live, key=lambda p: (not (p.done_in_call and not preempts), *rank(p)))
    chosen = line[:NUM_SLOTS]
    for program in programs:
        program.ran_last = program in chosen
    return chosen


def _step(program: ToyProgram, now: int) -> int:
    """One step; the completion time if it was the program's last, else 0."""
    program.done_in_call += 1
    if program.done_in_call < program.calls[program.call]:
        return 0
    program.finished_calls += program.done_in_call
    program.call, program.done_in_call, program.ready_at = program.call + 1, 0, now + 1
    return now + 1 if program.call == len(program.calls) else 0
