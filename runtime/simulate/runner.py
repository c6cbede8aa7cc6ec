"""Replays sessions through the real scheduler, tree and admission, on a clock that jumps. Knows policies by name only.

Events (arrivals, ends of gaps) are ordered by time, then by number; there is one clock and no thread. Between events
the loop is the engine's: schedule, execute, commit.
"""

import heapq
import itertools
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from ramet.radix.node import Cursor
from ramet.radix.tree import RadixTree
from ramet.runtime.scheduler.program_feed import ProgramFeed
from ramet.runtime.scheduler.programs import reader_name
from ramet.runtime.scheduler.scheduler import Ended, Scheduler
from ramet.runtime.scheduler.sequence import Request
from ramet.runtime.scheduler.token_row import ID_TYPE, TokenRow
from ramet.runtime.simulate.executor import SimulatedExecutor
from ramet.runtime.simulate.host import HostTier
from ramet.runtime.simulate.workload import Gap, Session, Turn, program_of_session
from ramet.runtime.types import GenerateSpec, ProgramSpec, StepPlan, StepResult


class ManualClock:
    """Seconds that somebody else moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


@dataclass(slots=True)
class TurnRecord:
    """What became of a turn."""

    session: str
    place: int
    """In its session, from 0."""
    submitted_s: float
    ended_s: float
    first_token_s: float
    """After it was submitted."""
    queue_s: float
    prompt_tokens: int
    cached_tokens: int
    known_tokens: int
    """Of the prompt, computed before by this session."""
    recomputed_tokens: int
    output_tokens: int


@dataclass(slots=True)
class SessionRecord:
    """What became of a session."""

    name: str
    started_s: float
    ended_s: float
    num_turns: int
    workload: str
    tenant: str
    service: float
    """KV-token-seconds and compute, as the program table counts them."""


class ProgramTimes(NamedTuple):
    """A program of one session or several."""

    started_s: float
    ended_s: float


@dataclass(slots=True)
class Replay:
    """All that a run left."""

    turns: list[TurnRecord] = field(default_factory=list)
    sessions: list[SessionRecord] = field(default_factory=list)
    seconds: float = 0.0
    """Simulated."""
    busy_s: float = 0.0
    wall_s: float = 0.0
    num_steps: int = 0
    num_preemptions: int = 0
    policy_s: float = 0.0
    """CPU time in schedule() and commit(): a busy neighbour does not count."""
    num_refused: int = 0
    loaded_tokens: int = 0
    """From the host."""
    idle_token_s: float = 0.0
    """KV tokens that no running turn held, times seconds."""

    def programs(self) -> dict[str, ProgramTimes]:
        """Program -> from its first session's coming to its last one's end."""
        found: dict[str, ProgramTimes] = {}
        for session in self.sessions:
            name = program_of_session(session.name)
            known = found.get(name, ProgramTimes(session.started_s, session.ended_s))
            found[name] = ProgramTimes(min(known.started_s, session.started_s), max(known.ended_s, session.ended_s))
        return found


class _Live:
    """A session on its way."""

    __slots__ = (
        "branch_id",
        "cursor",
        "known",
        "loadable",
        "place",
        "returned_s",
        "row",
        "session",
        "started_s",
        "waits_for",
    )

    def __init__(self, session: Session, started_s: float) -> None:
        self.session, self.started_s = session, started_s
        self.branch_id = 0
        self.waits_for = set(session.after)
        self.returned_s: float | None = None
        """When its present turn came, where it waits for the host's tokens of it, ..."""
        self.loadable = 0
        """... of which there are so many."""
        self.place = 0
        self.row = TokenRow()
        self.cursor: Cursor | None = None
        self.known = 0


class Watcher(Protocol):
    """Who looks on, and may free or move what sessions in a gap hold: a rule, or a measure."""

    def paused(self, session: str, cursor: Cursor | None, num_tokens: int) -> None:
        """A session waits in a gap; its context is so long."""
        ...

    def returned(self, session: str, request_id: int, num_known: int, num_loadable: int) -> None:
        """A turn of it was submitted: the first `num_known` tokens were computed before, a lower tier has
        `num_loadable`."""
        ...

    def closed(self, session: str) -> None: ...

    def stepped(self, plan: StepPlan, seconds: float, num_waiting: int) -> None:
        """A step is done; so many turns had to wait."""
        ...


class Runner:
    """One run: closed loop, which keeps a number of sessions going, or open loop, which lets each come at its time."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: SimulatedExecutor,
        clock: ManualClock,
        feed: ProgramFeed,
        *,
        before_step: Callable[[float], None] | None = None,
        returns_at: dict[str, float] | None = None,
        host: HostTier | None = None,
        writes_through: bool = True,
    ) -> None:
        """`writes_through`: what ends a turn goes to the host at once; False: a watcher decides"""
        self._writes_through = writes_through
        self._scheduler, self._executor, self._clock, self._feed = scheduler, executor, clock, feed
        self._before_step, self._host = before_step, host
        self._returns_at = {} if returns_at is None else returns_at
        self._page_size = scheduler.cache.page_size
        self._events: list[tuple[float, int, _Live]] = []
        self._serial, self._ids, self._requests = itertools.count(), itertools.count(1 << 20), itertools.count()
        self._next_id = 0
        self._live: dict[int, _Live] = {}
        self._heads: dict[str, array[int]] = {}
        self._backlog: Iterator[Session] = iter(())
        self._open: Counter[str] = Counter()
        """Program -> its sessions that came, or will come, and have not ended."""
        self._num_branches: Counter[str] = Counter()
        self._followers: dict[str, list[_Live]] = defaultdict(list)
        self.watchers: list[Watcher] = []
        self.replay = Replay()
        self.on_decision: Callable[[float], None] | None = None
        """Told the CPU seconds of each step's schedule() and commit()."""

    def use_executor(self, executor: SimulatedExecutor) -> None:
        """Another executor, before the run."""
        self._executor = executor

    def closed_loop(self, sessions: Iterator[Session], num_live: int, until_s: float) -> Replay:
        """Always `num_live` sessions: when one ends the next begins."""
        self._backlog = sessions
        for session in itertools.islice(sessions, num_live):
            self._arrive(session, 0.0)
        return self._run(until_s)

    def open_loop(self, sessions: Sequence[Session], until_s: float = float("inf")) -> Replay:
        """Each at its `arrived_s`, or after those it waits for; to the end of the last."""
        for session in sessions:
            self._arrive(session, session.arrived_s)
        return self._run(until_s)

    @property
    def tree(self) -> RadixTree:
        """What is cached, for who measures."""
        assert self._scheduler.cache.tree is not None
        return self._scheduler.cache.tree

    @property
    def num_programs(self) -> int:
        """That are open now."""
        return len(self._feed.table)

    @property
    def num_nodes(self) -> int:
        """Of the radix tree, now."""
        return self._scheduler.cache.num_nodes

    def check_idle(self) -> None:
        """AssertionError unless every page has its one owner, and none is leased."""
        self._scheduler.check()
        assert self._scheduler.cache.balance().leased == 0, "a turn ended and kept pages"

    # The loop --------------------------------------------------------------------------------------------------------

    def _run(self, until_s: float) -> Replay:
        began = time.perf_counter()
        while self._clock.seconds < until_s and (self._events or self._live):
            self._deliver()
            if not self._step() and not self._wait():
                break
        self.replay.seconds, self.replay.busy_s = self._clock.seconds, self._executor.busy_s
        self.replay.wall_s = time.perf_counter() - began
        self.replay.loaded_tokens = self._executor.num_loaded
        self.replay.num_preemptions = self._scheduler.counters.preemptions
        return self.replay

    def _step(self) -> bool:
        """One turn of the engine's loop; False where nothing could be computed."""
        began, before_s = time.thread_time(), self.replay.policy_s
        if self._before_step is not None:
            self._before_step(self._clock.seconds)
        plan = self._scheduler.schedule()
        self.replay.policy_s += time.thread_time() - began
        result = self._executor.execute(plan)
        self._clock.seconds += result.compute_s + self._executor.overhead_s(plan)
        for watcher in self.watchers if plan.rows else ():
            watcher.stepped(plan, result.compute_s, len(self._live) - len(plan.rows))
        self.replay.idle_token_s += result.compute_s * self._scheduler.cache.num_evictable * self._page_size
        began = time.thread_time()
        if plan.rows:
            self._feed.stepped(plan, result.compute_s)
        self._scheduler.commit(result if plan.rows else StepResult(()))
        decided_s = self.replay.policy_s = self.replay.policy_s + time.thread_time() - began
        if self.on_decision is not None and plan.rows:
            self.on_decision(decided_s - before_s)
        for ended in self._scheduler.take_ended():
            self._turn_ended(ended)
        self.replay.num_steps += bool(plan.rows)
        return bool(plan.rows)

    def _deliver(self) -> None:
        while self._events and self._events[0][0] <= self._clock.seconds:
            _, _, live = heapq.heappop(self._events)
            if not self._waits_for_host(live):
                self._submit(live)

    def _wait(self) -> bool:
        """Nothing runs: on to the next event. False where there is none."""
        if not self._events:
            return False
        self._clock.seconds = max(self._clock.seconds, self._events[0][0])
        return True

    # Sessions --------------------------------------------------------------------------------------------------------

    def _arrive(self, session: Session, at_s: float) -> None:
        live = _Live(session, at_s)
        self._open[session.program] += 1
        live.branch_id = self._num_branches[session.program]
        self._num_branches[session.program] += 1
        name, length = session.shared_prefix
        if length:
            head = self._heads.get(name)
            if head is None or len(head) < length:
                head = self._heads[name] = self._fresh(length)
            live.row.extend(head[:length])
        for name in live.waits_for:
            self._followers[name].append(live)
        if not live.waits_for:
            heapq.heappush(self._events, (at_s, next(self._serial), live))

    def _release(self, name: str, now: float) -> None:
        """Those that waited for this session alone come."""
        for live in self._followers.pop(name, ()):
            live.waits_for.discard(name)
            if not live.waits_for:
                live.started_s = now + live.session.arrived_s
                heapq.heappush(self._events, (live.started_s, next(self._serial), live))

    def _fresh(self, num_tokens: int) -> "array[int]":
        """Ids that nobody else has."""
        first, self._next_id = self._next_id, self._next_id + num_tokens
        return array(ID_TYPE, np.arange(first, first + num_tokens, dtype=np.int32).tobytes())

    def _waits_for_host(self, live: _Live) -> bool:
        """Start the transfer of what the host has of it and the device lost; True until that is over."""
        if self._host is None or live.returned_s is not None or not live.place:
            return False
        now, session = self._clock.seconds, live.session
        live.returned_s = now
        known = min(session.turns[live.place].kept_tokens, len(live.row))
        live.loadable = min(known, self._host.held(session.name))
        resident = self.tree.reader_depth(reader_name(session.program, live.branch_id))
        ready_s = self._host.load(live.loadable - resident, now)
        if ready_s <= now:
            return False
        heapq.heappush(self._events, (ready_s, next(self._serial), live))
        return True

    def _submit(self, live: _Live) -> None:
        session, turn = live.session, live.session.turns[live.place]
        known = self._extend(live, turn)
        request = Request(
            request_id=next(self._requests),
            tokens=live.row,
            spec=GenerateSpec(max_tokens=turn.output_tokens, ignore_eos=True, stream_interval=1 << 30),
            program=ProgramSpec(
                program_id=session.program,
                workload=session.workload,
                tenant=session.tenant,
                priority=session.priority,
            ),
            branch_id=live.branch_id,
            cursor=live.cursor,
            num_known=known,
        )
        live.known = known
        self._live[request.request_id] = live
        self._executor.expect(request.request_id, len(live.row), self._fresh(turn.output_tokens), live.loadable)
        for watcher in self.watchers:
            watcher.returned(session.name, request.request_id, known, live.loadable)
        self._feed.submitted(request)
        self._scheduler.submit(request)
        for ended in self._scheduler.take_ended():  # refused
            self._turn_ended(ended)

    def _extend(self, live: _Live, turn: Turn) -> int:
        """Write the turn's prompt into the session's row; how much of it the session had computed before."""
        known = min(turn.kept_tokens, len(live.row)) if live.place else 0
        if live.place:
            live.row.truncate(known)
            if live.cursor is not None and live.cursor.num_tokens > known:
                live.cursor = None
        block_tokens, blocks = live.session.blocks
        if blocks and not live.place:
            ids = np.repeat(np.array(blocks, np.int64) * block_tokens, block_tokens) + np.tile(
                np.arange(block_tokens), len(blocks)
            )
            live.row.extend(array(ID_TYPE, ids[: turn.new_tokens].astype(np.int32).tobytes()))
            return known
        live.row.extend(self._fresh(turn.new_tokens))
        return known

    def _turn_ended(self, ended: Ended) -> None:
        seq, now = ended.seq, self._clock.seconds
        live = self._live.pop(seq.id)
        session, turn = live.session, live.session.turns[live.place]
        if ended.ending.failed is not None:
            self.replay.num_refused += 1
        self.replay.turns.append(self._record(live, ended, now))
        live.cursor, live.place = ended.cursor, live.place + 1
        live.returned_s, live.loadable = None, 0
        is_last = live.place == len(session.turns) or turn.gap is None or ended.ending.failed is not None
        self._returns_at.pop(session.program, None)
        if turn.gap is not None and not is_last:
            self._returns_at[session.program] = now + turn.gap.duration_s
        self._feed.ended(ended)
        program = self._feed.table.find(session.program)
        service = program.attained if program is not None else 0.0
        if self._host is not None:
            self._write_through(session.name, len(live.row), is_last)
        if turn.gap is not None and not is_last:
            self._pause(live, turn.gap, now)
        else:
            self._session_ended(live, service, now)

    def _pause(self, live: _Live, gap: Gap, now: float) -> None:
        session = live.session
        program = self._feed.table.find(session.program)
        if program is not None and not program.turns:
            self._feed.wait(session.program, gap.kind, gap.key, gap.expected_s)
        for watcher in self.watchers:
            watcher.paused(session.name, live.cursor, len(live.row))
        heapq.heappush(self._events, (now + gap.duration_s, next(self._serial), live))

    def _session_ended(self, live: _Live, service: float, now: float) -> None:
        session = live.session
        self._open[session.program] -= 1
        for watcher in self.watchers:
            watcher.closed(session.name)
        self._feed.left(session.program, live.branch_id)
        program = self._feed.table.find(session.program)
        if self._open[session.program] <= 0:
            self._feed.closed(session.program)
        elif program is not None and not program.turns:
            self._feed.wait(session.program, "join", (session.workload, "join"))
        self.replay.sessions.append(
            SessionRecord(session.name, live.started_s, now, live.place, session.workload, session.tenant, service)
        )
        self._release(session.name, now)
        following = next(self._backlog, None)
        if following is not None:
            self._arrive(following, now)

    def _write_through(self, name: str, num_tokens: int, is_last: bool) -> None:
        assert self._host is not None
        if is_last:
            self._host.drop(name)
        elif self._writes_through:
            self._host.write(name, num_tokens, self._clock.seconds)

    def _record(self, live: _Live, ended: Ended, now: float) -> TurnRecord:
        seq = ended.seq
        timings = seq.timings(now)
        came_s = seq.arrived_s if live.returned_s is None else live.returned_s
        loading_s = seq.arrived_s - came_s
        return TurnRecord(
            session=live.session.name,
            place=live.place,
            submitted_s=came_s,
            ended_s=now,
            first_token_s=loading_s + (timings.time_to_first_token_s or now - seq.arrived_s),
            queue_s=loading_s + timings.queue_s,
            prompt_tokens=seq.num_prompt,
            cached_tokens=max(0, seq.num_cached),
            known_tokens=live.known,
            recomputed_tokens=seq.num_recomputed,
            output_tokens=seq.num_sampled,
        )
