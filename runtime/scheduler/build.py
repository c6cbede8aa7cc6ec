"""A scheduler out of its settings: the one place that knows all of its parts."""

from typing import assert_never

from ramet.radix.tree import RadixTree
from ramet.runtime.clock import Clock
from ramet.runtime.config import EngineConfig, PaceConfig, SchedulingConfig
from ramet.runtime.kv.allocator import PageAllocator
from ramet.runtime.scheduler.admission import PageAdmission
from ramet.runtime.scheduler.cache import PrefixCache
from ramet.runtime.scheduler.pace import StepPace
from ramet.runtime.scheduler.policies.base import Order
from ramet.runtime.scheduler.policies.fcfs import FirstComeFirstServed
from ramet.runtime.scheduler.policies.longest_prefix import LongestPrefixFirst
from ramet.runtime.scheduler.scheduler import Scheduler


def build_scheduler(num_pages: int, clock: Clock, config: EngineConfig | None = None) -> Scheduler:
    """Over a pool of `num_pages` pages besides the reserved one (`scheduler.cache.allocator.pool_pages` in all)."""
    config = config or EngineConfig()
    size = config.cache.page_size
    tree = RadixTree(size, clock=clock.now) if config.cache.is_on else None
    cache = PrefixCache(PageAllocator(num_pages), size, tree)
    order, admission = build_order(config.scheduling), PageAdmission(config.admission)
    return Scheduler(cache, order, admission, clock, build_pace(config.pace))


def build_pace(config: PaceConfig) -> StepPace | None:
    return None if config.max_stall_s is None else StepPace(config.max_stall_s)


def build_order(config: SchedulingConfig) -> Order:
    match config.order:
        case "fcfs":
            return FirstComeFirstServed()
        case "lpm":
            return LongestPrefixFirst(ageing_tokens_per_s=config.ageing_tokens_per_s)
    assert_never(config.order)
