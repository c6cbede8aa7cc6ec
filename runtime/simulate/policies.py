"""Policies by name: the order, the admission and the eviction order that a simulated scheduler is built of.

B0 to B8 are the baselines of the report. Each is put together from the same parts as the engine's; what is a rule of a
published system, reconstructed, says so.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ramet.radix.eviction import EvictionOrder, LeastRecentlyUsed
from ramet.radix.tree import RadixTree
from ramet.runtime.config import AdmissionConfig
from ramet.runtime.errors import BadRequest
from ramet.runtime.kv.allocator import PageAllocator
from ramet.runtime.scheduler.admission import Admission, PageAdmission
from ramet.runtime.scheduler.cache import PrefixCache
from ramet.runtime.scheduler.policies.base import Order
from ramet.runtime.scheduler.policies.fcfs import FirstComeFirstServed
from ramet.runtime.scheduler.policies.gittins import gittins
from ramet.runtime.scheduler.policies.las import atlas, las
from ramet.runtime.scheduler.policies.longest_prefix import LongestPrefixFirst
from ramet.runtime.scheduler.policies.program_fcfs import program_fcfs
from ramet.runtime.scheduler.policies.programs import ProgramOrder, never
from ramet.runtime.scheduler.program_feed import Measured, ProgramFeed
from ramet.runtime.scheduler.programs import Gap, Program, ProgramTable, reader_name
from ramet.runtime.scheduler.retention import RetentionOrder
from ramet.runtime.scheduler.scheduler import Scheduler
from ramet.runtime.scheduler.working_set import ProgramAdmission, WorkingSetConfig
from ramet.runtime.simulate.baselines.intercept import Interceptions, Rung
from ramet.runtime.simulate.baselines.min_waste import MinWaste
from ramet.runtime.simulate.baselines.oracle import FarthestNextUse
from ramet.runtime.simulate.baselines.pause import PausedPrograms
from ramet.runtime.simulate.baselines.session_reference import SessionReferences
from ramet.runtime.simulate.baselines.ttl import SeenDurations, TimeToLive
from ramet.runtime.simulate.cost import CostModel
from ramet.runtime.simulate.executor import SimulatedExecutor
from ramet.runtime.simulate.host import HostTier, Worth
from ramet.runtime.simulate.runner import ManualClock, Runner, Watcher
from ramet.runtime.simulate.synthetic import AUGMENTATIONS
from ramet.runtime.simulate.workload import program_of_session


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConfig:
    """The simulated machine."""

    cost: CostModel
    pool_tokens: int
    page_size: int = 16
    max_running: int = 64
    chunk_tokens: int = 8192
    """Tokens of a step, prompt and output together, before drafts."""
    num_drafts: int = 15
    extra_wait_s: float | None = 2.0
    """Q of the retention index; None: measured on the way, as the engine does."""
    host_tokens: int = 0
    """KV tokens of a host tier; 0: none."""


@dataclass(slots=True)
class Parts:
    """What policies are built from."""

    config: MachineConfig
    clock: ManualClock = field(default_factory=ManualClock)
    tree: RadixTree = field(init=False)
    table: ProgramTable = field(init=False)
    retention: RetentionOrder = field(init=False)
    measured: Measured = field(default_factory=Measured)

    def __post_init__(self) -> None:
        self.tree = RadixTree(self.config.page_size, clock=self.clock.now)
        self.table = ProgramTable(self.config.pool_tokens)
        self.retention = RetentionOrder(self.table, self.rebuild_s, extra_wait_s=self.extra_wait_s)

    def extra_wait_s(self) -> float:
        """Q: how much longer a return waits that finds its KV gone."""
        given = self.config.extra_wait_s
        return self.measured.extra_wait_s if given is None else given

    def rebuild_s(self, start: int, end: int) -> float:
        """R: from the host where there is one."""
        cost = self.config.cost
        return cost.reload_s(end - start) if self.config.host_tokens else cost.rebuild_s(start, end)

    @property
    def recompute_weight(self) -> float:
        """Of a lost token, against one that is computed: the host makes it cheap."""
        if not self.config.host_tokens:
            return 1.0
        return self.config.cost.reload_s(10_000) / self.config.cost.rebuild_s(0, 10_000)

    def missing(self, program: Program) -> float:
        """Service that a program needs first, because its KV is gone: a second of compute is worth the whole pool."""
        resident = self.tree.reader_depth(reader_name(program.program_id, 0))
        if resident >= program.held_tokens:
            return 0.0
        return self.config.pool_tokens * self.rebuild_s(resident, program.held_tokens)

    def worth(self, session: str, now: float) -> float:
        """To the host: the index of a session."""
        program = self.table.find(program_of_session(session))
        return 0.0 if program is None else self.retention.index(program, now)

    def page_admission(self) -> Admission:
        return PageAdmission(AdmissionConfig(max_step_tokens=self.step_tokens, max_running=self.config.max_running))

    def working_set(self) -> ProgramAdmission:
        settings = WorkingSetConfig(max_step_tokens=self.step_tokens, max_running=self.config.max_running)
        return ProgramAdmission(
            settings,
            self.table,
            self.retention,
            self.clock,
            self.config.page_size,
            recompute_weight=self.recompute_weight,
        )

    @property
    def step_tokens(self) -> int:
        return self.config.chunk_tokens + self.config.max_running * self.config.num_drafts

    returns_at: dict[str, float] = field(default_factory=dict)
    """Program -> when its gap ends: for the oracle alone."""


@dataclass(slots=True)
class Built:
    """The three decisions."""

    order: Order
    admission: Admission
    eviction: EvictionOrder
    before_step: Callable[[float], None] | None = None
    host_worth: Worth | None = None
    """How a host tier chooses who leaves; None: least recently used."""
    watcher: Callable[[PrefixCache, HostTier | None], Watcher] | None = None
    """A rule that decides in gaps, over the cache and the host tier; that tier is then written by it alone."""


Builder = Callable[[Parts], Built]


def _lru(order: Callable[[Parts], Order]) -> Builder:
    return lambda parts: Built(order(parts), parts.page_admission(), LeastRecentlyUsed())


PARTS = ("retention", "admission", "order", "gang", "splice")
"""Of ours, that can be left out. `retention`: least recently used eviction. `admission`: page counts only. `order`:
program FCFS. `gang`: rows read a shared prefix each for itself. `splice`: outputs that a client sends back are not
known again (that one is of the workload: `workload.resent`)."""


def _ours(without: frozenset[str] = frozenset(), *, residency: bool = False) -> Builder:
    """`residency`: the order counts what a program would have to rebuild first."""

    def build(parts: Parts) -> Built:
        has_admission, has_retention = "admission" not in without, "retention" not in without
        order = (
            program_fcfs(parts.table, by_admission=has_admission)
            if "order" in without
            else gittins(parts.table, parts.missing if residency else None, by_admission=has_admission)
        )
        return Built(
            order,
            parts.working_set() if has_admission else parts.page_admission(),
            parts.retention if has_retention else LeastRecentlyUsed(),
            host_worth=parts.worth if has_retention else None,
        )

    return build


def _session_reference(parts: Parts) -> Built:
    return Built(FirstComeFirstServed(), parts.page_admission(), SessionReferences())


def _min_waste(parts: Parts) -> Built:
    return Built(program_fcfs(parts.table), parts.page_admission(), MinWaste(parts.table, parts.config.cost.rebuild_s))


def _intercept(rung: Rung, *, by_return: bool = False) -> Builder:
    """`by_return`: a program that comes back stands behind all who wait already, as a new request would."""

    def build(parts: Parts) -> Built:
        config, profiled = parts.config, {kind: shape.gap_s for kind, shape in AUGMENTATIONS.items()}

        def watcher(cache: PrefixCache, host: HostTier | None) -> Watcher:
            return Interceptions(rung, cache, parts.table, config.cost, parts.clock, host, parts.returns_at, profiled)

        order: Order = FirstComeFirstServed() if by_return else program_fcfs(parts.table)
        eviction = MinWaste(parts.table, config.cost.rebuild_s)
        return Built(order, parts.page_admission(), eviction, watcher=watcher)

    return build


def _ttl(parts: Parts) -> Built:
    seen = parts.table.estimator = SeenDurations()

    def hold_s(program: Program, gap: Gap) -> float:
        return seen.hold_s(gap.key, parts.retention.saved_s(program))

    return Built(program_fcfs(parts.table), parts.page_admission(), TimeToLive(parts.table, hold_s))


def _ttl_fixed(parts: Parts) -> Built:
    return Built(program_fcfs(parts.table), parts.page_admission(), TimeToLive(parts.table, lambda program, gap: 2.0))


def _pause(parts: Parts) -> Built:
    admission = PausedPrograms(parts.page_admission(), parts.table)
    order = program_fcfs(parts.table, by_admission=True)  # who is paused stands behind who is not
    return Built(order, admission, LeastRecentlyUsed(), admission.before_step)


def _token_counter(parts: Parts) -> Built:
    """VTC: who has had the fewest tokens goes first; an output token counts for two."""
    order = ProgramOrder(parts.table, lambda program, turn, now: (program.counter,), never, by_admission=False)
    return Built(order, parts.page_admission(), LeastRecentlyUsed())


def _oracle(parts: Parts) -> Built:
    return Built(gittins(parts.table), parts.working_set(), FarthestNextUse(parts.returns_at))


POLICIES: dict[str, Builder] = {
    "fcfs": _lru(lambda parts: FirstComeFirstServed()),
    "lpm": _lru(lambda parts: LongestPrefixFirst(ageing_tokens_per_s=512.0)),
    "las": _lru(lambda parts: las(parts.table)),
    "atlas": _lru(lambda parts: atlas(parts.table)),
    "program-fcfs": _lru(lambda parts: program_fcfs(parts.table)),
    "session-reference": _session_reference,
    "min-waste": _min_waste,
    "intercept-discard": _intercept(Rung(swaps=False, preserves=False), by_return=True),
    "intercept-swap": _intercept(Rung(preserves=False)),
    "intercept-profiled": _intercept(Rung(expects="profiled")),
    "intercept": _intercept(Rung()),
    "intercept-oracle": _intercept(Rung(expects="oracle")),
    "ttl": _ttl,
    "ttl-2s": _ttl_fixed,
    "pause": _pause,
    "vtc": _token_counter,
    "gittins": _ours(),
    "oracle": _oracle,
    "gittins-residency": _ours(residency=True),
}
"""Name -> how it is built."""
BASELINES = {
    "B0": "fcfs",
    "B1": "lpm",
    "B2": "session-reference",
    "B3": "las",
    "B4": "min-waste",
    "B5a": "ttl",
    "B5b": "ttl-2s",
    "B6": "pause",
    "B7": "gittins",
    "B8": "oracle",
}
"""The report's rows. B2 and B4 to B6 are rules of published systems, as far as they are published."""


def build_runner(policy: str, config: MachineConfig, without: frozenset[str] = frozenset()) -> Runner:
    """A machine with an empty cache under the policy. `without`: parts of ours to leave out, of `PARTS`."""
    policy = BASELINES.get(policy, policy)
    if policy not in POLICIES:
        raise BadRequest(expected=f"one of {', '.join(POLICIES)}", got=policy, at="--policy")
    check_parts(policy, without)
    parts = Parts(config)
    built = (_ours(without) if without else POLICIES[policy])(parts)
    tree = parts.tree
    allocator = PageAllocator(config.pool_tokens // config.page_size)
    cache = PrefixCache(allocator, config.page_size, tree, built.eviction)
    scheduler = Scheduler(cache, built.order, built.admission, parts.clock)
    working_set = built.admission if isinstance(built.admission, ProgramAdmission) else None
    feed = ProgramFeed(parts.table, tree, parts.clock, working_set, parts.measured)
    executor = SimulatedExecutor(config.cost, num_drafts=config.num_drafts, reads_shared_once="gang" not in without)
    host = HostTier(config.host_tokens, built.host_worth, config.cost.reload_s) if config.host_tokens else None
    runner = Runner(
        scheduler,
        executor,
        parts.clock,
        feed,
        before_step=built.before_step,
        returns_at=parts.returns_at,
        host=host,
        writes_through=built.watcher is None,
    )
    if built.watcher is not None:
        runner.watchers.append(built.watcher(cache, host))
    return runner


def check_parts(policy: str, without: Iterable[str]) -> None:
    """Raises BadRequest for a part that there is not, or of a policy that has no parts."""
    for part in without:
        if part not in PARTS:
            raise BadRequest(expected=f"one of {', '.join(PARTS)}", got=part, at="--without")
        if policy != BASELINES["B7"]:
            raise BadRequest(expected=f"--policy {BASELINES['B7']}, whose parts these are", got=policy, at="--without")
