"""Ours: the Gittins index over whole programs, learned per class, with fair share against starvation.

Until a class has a few finished programs it is ordered by least attained service, in levels that double: as if what is
left were about what was had (a heavy tail), so that its programs stand in one line with those of taught classes. The
index counts what a program whose KV is gone would have to rebuild first, so what is resident goes before what is not
without a rule for it. Branches of one program that run side by side are ranked by their longest path, not by their
sum.
"""

from collections.abc import Callable

from ramet.runtime.scheduler.gittins import blind_index, service_level
from ramet.runtime.scheduler.policies.programs import ProgramOrder, Starving, never
from ramet.runtime.scheduler.programs import Program, ProgramTable, Turn

QUANTUM_SHARE = 0.01
"""The first level of a class that knows nothing: service of so many seconds of the whole pool, which is about what one
of a full set of rows has in a second."""

Missing = Callable[[Program], float]
"""Service that a program needs before it can go on, because its KV is gone; 0 where it is resident."""


def gittins(
    table: ProgramTable, missing: Missing | None = None, *, fair: bool = True, by_admission: bool = True
) -> ProgramOrder:
    quantum = QUANTUM_SHARE * table.pool_tokens

    def index(program: Program, turn: Turn, now_s: float) -> tuple[float, ...]:
        attained = turn.inherited + turn.service if len(program.turns) > 1 else program.attained
        rebuild = missing(program) if missing is not None and not turn.is_running else 0.0
        known = table.classes[program.class_key].index(attained, rebuild)
        if known is None:
            known = blind_index(quantum * 2.0 ** service_level(attained, quantum) + rebuild)
        return (-known * program.weight,)

    return ProgramOrder(table, index, _behind(table) if fair else never, by_admission=by_admission)


def _behind(table: ProgramTable) -> Starving:
    def is_starving(program: Program, turn: Turn, now_s: float) -> bool:
        return table.is_starving(program)

    return is_starving
