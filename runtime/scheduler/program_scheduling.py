"""The parts that turn a scheduler of requests into a scheduler of programs, put together for an engine.

order, admission, eviction  go to the Scheduler and its PrefixCache
feed                        is the engine's listener
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from ramet.radix.eviction import EvictionOrder, LeastRecentlyUsed
from ramet.radix.tree import RadixTree
from ramet.runtime.clock import Clock
from ramet.runtime.config import AdmissionConfig
from ramet.runtime.scheduler.admission import Admission, PageAdmission
from ramet.runtime.scheduler.policies.base import Order
from ramet.runtime.scheduler.policies.gittins import gittins
from ramet.runtime.scheduler.policies.las import atlas, las
from ramet.runtime.scheduler.policies.program_fcfs import program_fcfs
from ramet.runtime.scheduler.program_feed import Measured, ProgramFeed
from ramet.runtime.scheduler.programs import ProgramTable
from ramet.runtime.scheduler.retention import RetentionOrder
from ramet.runtime.scheduler.working_set import ProgramAdmission, WorkingSetConfig

ProgramOrderName = Literal["las", "atlas", "program-fcfs", "gittins"]


class ProgramScheduling(NamedTuple):
    """See the module."""

    order: Order
    admission: Admission
    eviction: EvictionOrder
    feed: ProgramFeed


def program_scheduling(
    name: ProgramOrderName,
    *,
    tree: RadixTree,
    pool_tokens: int,
    admission: AdmissionConfig,
    clock: Clock,
    read_s_per_token: Callable[[], float | None] = lambda: None,
) -> ProgramScheduling:
    """`gittins` brings retention by value and admission by working set; the others order, over a plain cache.
    `read_s_per_token`: of a lower tier, as it is measured; None: nothing is known, or there is none."""
    table, measured = ProgramTable(pool_tokens), Measured(read_s_per_token=read_s_per_token)
    if name == "gittins":
        retention = RetentionOrder(table, measured.rebuild_s, extra_wait_s=lambda: measured.extra_wait_s)
        settings = WorkingSetConfig(
            max_step_tokens=admission.max_step_tokens,
            max_running=admission.max_running,
            prefill_share=admission.prefill_share,
        )
        working_set = ProgramAdmission(
            settings, table, retention, clock, tree.page_size, prefill_s_per_token=lambda: measured.known_pace
        )
        feed = ProgramFeed(table, tree, clock, working_set, measured)
        return ProgramScheduling(gittins(table), working_set, retention, feed)
    orders: dict[str, Callable[[ProgramTable], Order]] = {"las": las, "atlas": atlas, "program-fcfs": program_fcfs}
    order = orders[name](table)
    return ProgramScheduling(order, PageAdmission(admission), LeastRecentlyUsed(), ProgramFeed(table, tree, clock))
