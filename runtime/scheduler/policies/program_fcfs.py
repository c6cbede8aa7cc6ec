"""First program come, first served: a program's later turns keep its first arrival (as in Continuum)."""

from ramet.runtime.scheduler.policies.programs import ProgramOrder, never
from ramet.runtime.scheduler.programs import Program, ProgramTable, Turn


def program_fcfs(table: ProgramTable, *, by_admission: bool = False) -> ProgramOrder:
    return ProgramOrder(table, _arrival, never, by_admission=by_admission)


def _arrival(program: Program, turn: Turn, now_s: float) -> tuple[float, ...]:
    return (-program.spec.priority, program.arrived_s)
