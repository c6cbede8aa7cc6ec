"""The program table: what every program of the machine is doing, what it has had, and what it is waiting for.

One writer, told what happens and when. Knows no pages and no tensors; it holds the place of a program's KV in the tree
(a cursor), and no lock on it. States:

    NEW -> QUEUED -> PREFILL -> DECODE -> TOOL_GAP | HUMAN_GAP | JOIN_WAIT | DONE
    PREFILL, DECODE -> SUSPENDED (stepped back for others) -> PREFILL
    a gap -> RETURNED -> PREFILL

A program with several branches has the state of the branch that is furthest on (one that computes, before one that
waits). Service is KV-token-seconds plus compute seconds in the same unit: a second of the whole machine's compute is
worth the whole pool for a second.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ramet.radix.node import Cursor
from ramet.runtime.scheduler.estimator import GapEstimator, Key
from ramet.runtime.scheduler.fairshare import FairShare, VirtualTime, predicted_cost
from ramet.runtime.scheduler.gittins import ClassHistory, RunningMean
from ramet.runtime.types import GapKind, ProgramSpec


class State(Enum):
    NEW = "new"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    SUSPENDED = "suspended"
    RETURNED = "returned"
    TOOL_GAP = "tool_gap"
    HUMAN_GAP = "human_gap"
    JOIN_WAIT = "join_wait"
    DONE = "done"

    @property
    def is_gap(self) -> bool:
        return self in _GAPS

    @property
    def is_running(self) -> bool:
        return self in (State.PREFILL, State.DECODE)


_GAPS = frozenset({State.TOOL_GAP, State.HUMAN_GAP, State.JOIN_WAIT})
_GAP_STATES: dict[GapKind, State] = {"tool": State.TOOL_GAP, "human": State.HUMAN_GAP, "join": State.JOIN_WAIT}
GROWTH_SAMPLES = 256
GROWTH_QUANTILE = 0.8


_BRANCH = "\x00"


def reader_name(program_id: str, branch_id: int) -> str:
    """What a branch is called among the readers of the tree."""
    return f"{program_id}{_BRANCH}{branch_id}"


def program_of(reader: str) -> str:
    """The program of a reader."""
    return reader.partition(_BRANCH)[0]


class StepShare(NamedTuple):
    """What one turn had of a step."""

    program_id: str
    request_id: int
    context_tokens: int
    """KV tokens that it held."""
    new_tokens: int
    """Tokens that were computed for it."""
    is_prefill: bool


@dataclass(slots=True)
class Gap:
    """The program waits for something outside."""

    key: Key
    began_s: float
    expected_s: float | None = None


@dataclass(slots=True, eq=False)
class Turn:
    """One request of a program, queued or running."""

    request_id: int
    queued_at_s: float
    inherited: float
    """Service on the longest path of calls that led here (the scalar of ATLAS)."""
    prompt_tokens: int = 0
    waited_s: float = 0.0
    served_s: float = 0.0
    service: float = 0.0
    is_running: bool = False


@dataclass(slots=True, eq=False)
class Program:
    """One program. Read it; the table writes it."""

    spec: ProgramSpec
    arrived_s: float
    share: FairShare
    state: State = State.NEW
    is_admitted: bool = False
    """It has been let in, and its KV is (mostly) there or it runs."""
    attained: float = 0.0
    """Service of all its turns, so far."""
    critical: float = 0.0
    """Service on its longest path of finished calls."""
    finished_s: float = 0.0
    """Seconds served in finished calls (the priority of PLAS)."""
    waited_s: float = 0.0
    served_s: float = 0.0
    gaps_s: float = 0.0
    """Seconds spent in gaps that are over."""
    due_s: float | None = None
    """When it wants to have ended; None: it did not say."""
    counter: float = 0.0
    """Tokens it had, an output token for two (the virtual counter of VTC)."""
    turns: dict[int, Turn] = field(default_factory=dict)
    num_turns: int = 0
    gap: Gap | None = None
    cursor: Cursor | None = None
    """Where the KV of its last finished turn ends."""
    held_tokens: int = 0
    """Tokens of that path, when it was whole."""
    context_tokens: int = 0
    """The same with the tokens that are less than a page."""
    unshared_tokens: int = 0
    """Of those, the ones that no other program reads: what evicting it would free."""
    growth_tokens: int = 0
    """Context that it is expected to add in its next turn."""

    @property
    def program_id(self) -> str:
        return self.spec.program_id or ""

    @property
    def class_key(self) -> tuple[str, str]:
        """Tenant and workload: programs that resemble each other."""
        return (self.spec.tenant, self.spec.workload)

    @property
    def weight(self) -> float:
        """2 ** priority: multiplies its index, its KV's value and its fair share."""
        return 2.0**self.spec.priority


@dataclass(slots=True)
class TenantAccount:
    """What all programs of a tenant had."""

    service: float = 0.0
    """KV-token-seconds and compute of their turns, of parallel ones the sum."""
    idle_token_s: float = 0.0
    """KV tokens that only they read, times the seconds that these lay in gaps."""
    idle_cost_s: float = 0.0
    """The same at the price of memory of the time: seconds that others would have saved with it."""


class ProgramTable:
    """See the module. `pool_tokens`: KV tokens of the pool, which scales compute seconds to KV-token-seconds."""

    def __init__(self, pool_tokens: int) -> None:
        self.pool_tokens = pool_tokens
        self.estimator = GapEstimator()
        self.virtual = VirtualTime()
        self.classes: dict[tuple[str, str], ClassHistory] = defaultdict(ClassHistory)
        self._all = RunningMean()
        self._active: dict[tuple[str, str], RunningMean] = defaultdict(RunningMean)
        self.accounts: dict[str, TenantAccount] = defaultdict(TenantAccount)
        """By tenant; an account outlives its programs."""
        self.num_done = 0
        self.full_until_s = float("-inf")
        """Until then no new program is tried: one did not fit, and no other has ended since."""
        self.epoch = 0
        """Moves on when who stands where has changed for all: the line is ranked again at the next step."""
        self._programs: dict[str, Program] = {}
        self._growth: dict[tuple[str, str], list[int]] = defaultdict(list)

    def __getitem__(self, program_id: str) -> Program:
        return self._programs[program_id]

    def __iter__(self) -> Iterator[Program]:
        return iter(self._programs.values())

    def __len__(self) -> int:
        return len(self._programs)

    def find(self, program_id: str) -> Program | None:
        return self._programs.get(program_id)

    # Events ----------------------------------------------------------------------------------------------------------

    def open(self, spec: ProgramSpec, now_s: float) -> Program:
        """A program appears. Opening it again with another spec takes over its priority and its deadline."""
        known = self._programs.get(spec.program_id or "")
        if known is not None:
            if spec is not known.spec:
                known.spec, known.due_s = spec, _due_s(spec, now_s)
            return known
        program = Program(spec, now_s, self.virtual.join(2.0**spec.priority), due_s=_due_s(spec, now_s))
        program.growth_tokens = self.expected_growth(program.class_key)
        self._programs[program.program_id] = program
        return program

    def queue(self, program_id: str, request_id: int, now_s: float, prompt_tokens: int = 0) -> None:
        """A turn is submitted. It ends the program's gap."""
        program = self._programs[program_id]
        if program.gap is not None:
            self.estimator.end(program_id, now_s)
            program.gaps_s += now_s - program.gap.began_s
            program.gap = None
        program.turns[request_id] = Turn(request_id, now_s, program.critical, prompt_tokens)
        if not program.state.is_running:
            program.state = State.QUEUED if program.num_turns == 0 else State.RETURNED
        program.num_turns += 1

    def step(self, shares: Iterable[StepShare], seconds: float, now_s: float) -> None:
        """A step is done. Who had a row is charged; who had one before and none now was set back."""
        rows = list(shares)
        num_new = sum(row.new_tokens for row in rows) or 1
        total = 0.0
        for row in rows:
            service = seconds * (row.context_tokens + self.pool_tokens * row.new_tokens / num_new)
            total += service
            program = self._programs.get(row.program_id)
            if program is not None:
                self._charge(program, row, service, seconds, now_s)
        self.virtual.advance(total)

    def _charge(self, program: Program, row: StepShare, service: float, seconds: float, now_s: float) -> None:
        turn = program.turns.get(row.request_id)
        if turn is None:
            return
        if not turn.is_running:
            turn.is_running = program.is_admitted = True
            turn.waited_s += now_s - seconds - turn.queued_at_s
            program.waited_s += now_s - seconds - turn.queued_at_s
        program.state = State.PREFILL if row.is_prefill else State.DECODE
        turn.served_s += seconds
        turn.service += service
        program.served_s += seconds
        program.attained += service
        self.accounts[program.spec.tenant].service += service
        program.counter += row.new_tokens if row.is_prefill else 2.0 * row.new_tokens

    def suspend(self, program_id: str, request_id: int, now_s: float) -> None:
        """A running turn stepped back for others; it waits again."""
        program = self._programs[program_id]
        turn = program.turns[request_id]
        turn.is_running, turn.queued_at_s = False, now_s
        if not any(each.is_running for each in program.turns.values()):
            program.state = State.SUSPENDED

    def end_turn(
        self, program_id: str, request_id: int, cursor: Cursor | None, num_tokens: int, unshared_tokens: int
    ) -> None:
        """A turn is over and its KV lies in the tree above `cursor`; `num_tokens` is the context it leaves."""
        program = self._programs[program_id]
        turn = program.turns.pop(request_id)
        program.critical = max(program.critical, turn.inherited + turn.service)
        program.finished_s += turn.served_s
        self._note_growth(program, num_tokens - program.context_tokens)
        program.cursor, program.context_tokens, program.unshared_tokens = cursor, num_tokens, unshared_tokens
        program.held_tokens = cursor.num_tokens if cursor is not None else 0

    def gap(self, program_id: str, kind: GapKind, now_s: float, key: Key = (), expected_s: float | None = None) -> None:
        """The program waits: for a tool (from the closing token of its call on), a human or a join."""
        program = self._programs[program_id]
        if program.gap is not None:
            now_s = program.gap.began_s  # what it waits for is known better now; it has waited since then
        program.state = _GAP_STATES[kind]
        program.gap = Gap(key or (program.spec.workload, kind), now_s, expected_s)
        self.estimator.begin(program_id, program.gap.key, now_s)

    def charge_gap(self, program: Program, tokens_left: int, price: float, now_s: float) -> None:
        """A gap ends: what lay there for it alone is on its tenant's account, whoever it was kept from. `tokens_left`:
        of its unshared tokens, those that are still there; in between it had half of what went."""
        gap = program.gap
        if gap is None:
            return
        mean_tokens = (program.unshared_tokens + min(tokens_left, program.unshared_tokens)) / 2
        account, token_s = self.accounts[program.spec.tenant], mean_tokens * max(0.0, now_s - gap.began_s)
        account.idle_token_s += token_s
        account.idle_cost_s += token_s * max(0.0, price)

    def close(self, program_id: str) -> Program | None:
        """The program ended, however it ended."""
        program = self._programs.pop(program_id, None)
        if program is None:
            return None
        self.estimator.forget(program_id)
        self._no_longer_full()
        self.virtual.leave(program.share)
        if program.attained > 0:
            alike = (each.attained for each in self if each.class_key == program.class_key)
            self.classes[program.class_key].complete(program.attained, alike)
            self._all.add(program.attained)
            self._active[program.class_key].add(program.served_s + program.gaps_s)
        program.state = State.DONE
        self.num_done += 1
        return program

    def refuse(self, until_s: float) -> None:
        """A program did not fit: until something changes, those that were let in go before all others."""
        self.full_until_s = until_s
        self.epoch += 1

    def is_full(self, now_s: float) -> bool:
        """Does what was said when a program did not fit hold still?"""
        if now_s >= self.full_until_s:
            self._no_longer_full()
        return now_s < self.full_until_s

    def _no_longer_full(self) -> None:
        if self.full_until_s > float("-inf"):
            self.full_until_s = float("-inf")
            self.epoch += 1

    # What is expected ------------------------------------------------------------------------------------------------

    def predicted_cost(self, program: Program) -> float:
        """Total service, for its fair share."""
        return predicted_cost(self.mean_cost(program.class_key), program.attained)

    def mean_cost(self, class_key: tuple[str, str]) -> float:
        """Mean service of the finished programs of a class; of all programs, while none of the class has finished."""
        return self.classes[class_key].mean or self._all.mean

    def mean_active_s(self, class_key: tuple[str, str]) -> float:
        """Mean seconds that finished programs of a class computed or were in gaps; 0 before there are any."""
        return self._active[class_key].mean

    def is_starving(self, program: Program) -> bool:
        """Is it later than fair sharing would have let it be, by more than one program of its class?"""
        mean = self.mean_cost(program.class_key)
        if mean <= 0.0:
            return False
        return self.virtual.now > program.share.finish(self.predicted_cost(program)) + mean

    def expected_growth(self, class_key: tuple[str, str]) -> int:
        """80th percentile of the context that a turn of the class adds."""
        seen = self._growth.get(class_key)
        return sorted(seen)[int(GROWTH_QUANTILE * (len(seen) - 1))] if seen else 0

    def _note_growth(self, program: Program, tokens: int) -> None:
        if program.num_turns > 1 and tokens > 0:
            seen = self._growth[program.class_key]
            seen.append(tokens)
            if len(seen) > GROWTH_SAMPLES:
                del seen[: GROWTH_SAMPLES // 2]
            if len(seen) % 16 == 0 or len(seen) < 16:
                program.growth_tokens = self.expected_growth(program.class_key)


def _due_s(spec: ProgramSpec, now_s: float) -> float | None:
    return None if spec.deadline_s is None else now_s + spec.deadline_s
