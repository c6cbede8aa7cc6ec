"""Least attained service, at the grain of calls: PLAS and ATLAS of Autellix, with feedback levels.

PLAS: a call's priority is the seconds that the program's finished calls were served. ATLAS, for programs of parallel
calls: the longest path of calls that led to this one, instead of the sum. Either falls into one of a few levels whose
bounds double, first come first served inside; a running call is demoted as its own service passes the bounds. A program
that has waited `beta` times what it was served goes to the first level. The bounds and beta are unpublished; these are
ours.
"""

from ramet.runtime.scheduler.gittins import service_level
from ramet.runtime.scheduler.policies.programs import Index, ProgramOrder, Starving
from ramet.runtime.scheduler.programs import Program, ProgramTable, Turn

NUM_LEVELS = 8
FIRST_BOUND_S = 0.5
BETA = 2.0


def las(table: ProgramTable, *, beta: float = BETA, first_bound_s: float = FIRST_BOUND_S) -> ProgramOrder:
    def index(program: Program, turn: Turn, now_s: float) -> tuple[float, ...]:
        return (_level(program.finished_s + turn.served_s, first_bound_s, program.weight), turn.queued_at_s)

    return ProgramOrder(table, index, waited_long(beta), by_admission=False)


def atlas(table: ProgramTable, *, beta: float = BETA, first_bound_s: float = FIRST_BOUND_S) -> ProgramOrder:
    per_second = table.pool_tokens  # the scalar is kept in service, of which a busy pool gives about so much a second
    index: Index = lambda program, turn, now_s: (  # noqa: E731
        _level((turn.inherited + turn.service) / per_second, first_bound_s, program.weight),
        turn.queued_at_s,
    )
    return ProgramOrder(table, index, waited_long(beta), by_admission=False)


def waited_long(beta: float) -> Starving:
    """Has the program, with this turn, waited `beta` times as long as it was served?"""

    def is_starving(program: Program, turn: Turn, now_s: float) -> bool:
        waiting_s = 0.0 if turn.is_running else now_s - turn.queued_at_s
        return program.served_s > 0.0 and program.waited_s + waiting_s >= beta * program.served_s

    return is_starving


def _level(served_s: float, first_bound_s: float, weight: float) -> float:
    return min(NUM_LEVELS - 1, service_level(served_s / weight, first_bound_s))
