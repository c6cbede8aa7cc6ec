"""Programs that have said by when they want to end: which of them press, and which can't be met from the start.

A program presses while what it probably still needs, run without waiting, fills half of the time that it has left: it
then goes right behind those that starve, the earliest deadline first, and its KV is worth more. Before that it stands
where its index puts it, and past its deadline it does again: who is late already gains nothing from making others late.
What it needs is what finished programs of its class took, waiting left out; before there are any, as much again as it
took so far. Pure but for what it is told.
"""

from ramet.runtime.errors import Busy
from ramet.runtime.failures import to_failed
from ramet.runtime.scheduler.programs import Program, ProgramTable
from ramet.runtime.types import Failed

PRESSES_FROM = 2.0
"""Times the seconds that it probably still needs, before its deadline."""
WORTH = 4.0
"""What the KV of a program that presses counts for, against another's: two levels of priority."""
_LEAST_LEFT_S = 1.0
_LEAST_LEFT_SHARE = 0.1
"""Of its class's mean: nobody is known to be done until it is."""


def presses(table: ProgramTable, program: Program, now_s: float) -> bool:
    """Does its deadline want it to go on now?"""
    due_s = program.due_s
    return due_s is not None and now_s < due_s <= now_s + PRESSES_FROM * needs_s(table, program)


def needs_s(table: ProgramTable, program: Program) -> float:
    """Seconds that it probably still takes if it need not wait: computing, and in gaps."""
    mean_s, so_far_s = table.mean_active_s(program.class_key), program.served_s + program.gaps_s
    if mean_s <= 0.0:
        return max(so_far_s, _LEAST_LEFT_S)
    return max(mean_s - so_far_s, _LEAST_LEFT_SHARE * mean_s)


def too_late(program: Program, num_missing: int, prefill_s_per_token: float, now_s: float) -> Failed | None:
    """The answer to a program's first turn whose prompt alone takes longer than its deadline leaves; `num_missing` of
    its tokens are not cached. One that was let in is never refused: it may wait."""
    if program.due_s is None or program.num_turns > 1:
        return None
    left_s, prompt_s = program.due_s - now_s, num_missing * prefill_s_per_token
    if prompt_s <= left_s:
        return None
    said = (
        f"the deadline in {left_s:.3g} s can't be met: the {num_missing} tokens of the prompt that are not cached take "
        f"{prompt_s:.3g} s alone, at the pace of late. Give it more time (`deadline_s`), or a shorter prompt"
    )
    return to_failed(Busy(said, retry_after_s=max(1.0, prompt_s - left_s)))
