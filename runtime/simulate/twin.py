"""The simulated twin of an engine: the scheduler that the engine's own assembly would build, over a measured machine.

`policies.py` builds machines for the report, with baselines that no engine has; this one differs from an engine in its
executor and its clock and in nothing else, so that what it foretells can be held against the engine (S15).
"""

from dataclasses import dataclass
from typing import cast

from ramet.radix.tree import RadixTree
from ramet.runtime.config import AdmissionConfig, OrderName, PaceConfig, SchedulingConfig
from ramet.runtime.kv.allocator import PageAllocator
from ramet.runtime.scheduler.admission import PageAdmission
from ramet.runtime.scheduler.build import build_order, build_pace
from ramet.runtime.scheduler.cache import PrefixCache
from ramet.runtime.scheduler.program_feed import ProgramFeed
from ramet.runtime.scheduler.program_scheduling import ProgramOrderName, program_scheduling
from ramet.runtime.scheduler.programs import ProgramTable
from ramet.runtime.scheduler.scheduler import Scheduler
from ramet.runtime.simulate.executor import SimulatedExecutor, StepCosts
from ramet.runtime.simulate.runner import ManualClock, Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Those of `build_engine` that decide anything here."""

    policy: OrderName
    kv_tokens: int
    page_size: int = 16
    max_step_tokens: int = 512
    max_running: int = 256


def twin(settings: EngineSettings, cost: StepCosts) -> Runner:
    """A run of it is one of the simulator's."""
    clock = ManualClock()
    tree = RadixTree(settings.page_size, clock=clock.now)
    allocator = PageAllocator(settings.kv_tokens // settings.page_size)
    admission = AdmissionConfig(max_step_tokens=settings.max_step_tokens, max_running=settings.max_running)
    pace = build_pace(PaceConfig())
    executor = SimulatedExecutor(cost, num_drafts=0)
    if settings.policy in ("fcfs", "lpm"):
        order = build_order(SchedulingConfig(order="fcfs" if settings.policy == "fcfs" else "lpm"))
        cache = PrefixCache(allocator, settings.page_size, tree)
        scheduler = Scheduler(cache, order, PageAdmission(admission), clock, pace)
        return Runner(scheduler, executor, clock, ProgramFeed(ProgramTable(settings.kv_tokens), tree, clock))
    name = cast(ProgramOrderName, settings.policy)
    parts = program_scheduling(name, tree=tree, pool_tokens=settings.kv_tokens, admission=admission, clock=clock)
    cache = PrefixCache(allocator, settings.page_size, tree, parts.eviction)
    return Runner(Scheduler(cache, parts.order, parts.admission, clock, pace), executor, clock, parts.feed)
