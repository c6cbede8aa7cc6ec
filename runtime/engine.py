"""The loop of three verbs, and the thread that turns it. Knows neither tensors nor text; what it runs is handed in."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

from ramet.runtime.errors import EngineFailed
from ramet.runtime.failures import to_failed
from ramet.runtime.scheduler.scheduler import Ended, RequestEvent, Scheduler
from ramet.runtime.scheduler.sequence import Request
from ramet.runtime.types import BranchHandle, GapKind, Moved, PageMove, StepPlan, StepResult

log = logging.getLogger("ramet.engine")

T = TypeVar("T")

_MAX_FAILURES = 3
"""Steps in a row that may fail before the engine gives up: one bad step is survived, a broken device is not."""


_WAIT_FOR_DISK_S = 0.02
"""A step with nothing to compute waits so long for a page that is being read, then looks for new requests."""
_WRITE_PAUSE_S = 0.002
"""Between two batches of pages that an idle engine writes."""
_LAST_WRITES_S = 5.0
"""When it stops, what is not written by then is lost, and computed again some day."""
_PREFILL_TOKENS = 32


class Executor(Protocol):
    """`execution.executor.Executor`, as far as the loop needs it."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class Mover(Protocol):
    """`execution.executor.Mover`, as far as the loop needs it."""

    def move(self, moves: Sequence[PageMove]) -> None: ...
    def moved(self, wait_s: float = 0.0) -> Sequence[Moved]: ...
    def close(self) -> None: ...


class Listener(Protocol):
    """Who is told what happens to programs, on the engine's thread: a program table, a trace. It decides nothing
    here."""

    def submitted(self, request: Request) -> None:
        """Before the scheduler takes it."""
        ...

    def stepped(self, plan: StepPlan, seconds: float) -> None:
        """After a step, before it is committed."""
        ...

    def ended(self, ended: Ended) -> None:
        """A turn ended; its program waits now, for what `gap` may say later."""
        ...

    def gap(self, branch: BranchHandle, kind: GapKind, tool: str | None, expected_s: float | None) -> None: ...

    def left(self, program_id: str, branch_id: int) -> None:
        """A branch was closed, and its program goes on."""
        ...

    def closed(self, program_id: str) -> None: ...


class Engine:
    """Decides, works, decides."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        listener: Listener | None = None,
        mover: Mover | None = None,
    ) -> None:
        """`mover`: carries pages to and from the tier of `scheduler.cache`; both or neither."""
        assert (mover is None) == (scheduler.cache.tier is None), "a tier needs a mover, and a mover a tier"
        self.scheduler, self.executor, self.listener, self.mover = scheduler, executor, listener, mover
        self.num_computed_steps = 0
        """Steps that computed something, and came back."""

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def submit(self, request: Request) -> None:
        if self.listener is not None:
            self.listener.submitted(request)
        self.scheduler.submit(request)

    def step(self) -> list[RequestEvent]:
        plan = self.scheduler.schedule()  # decides, in ints
        self._send_moves()
        is_empty = not (plan.rows or plan.ends or plan.copies or plan.moves)
        result = StepResult(()) if is_empty else self.executor.execute(plan)  # works, in tensors
        self.num_computed_steps += bool(plan.rows)
        if self.listener is not None and plan.rows:
            self.listener.stepped(plan, result.compute_s)
        if self.mover is not None:
            self._note_prefill(plan, result.compute_s)
            self._take_in(0.0 if plan.rows else _WAIT_FOR_DISK_S)
        return self.scheduler.commit(result)  # decides, in ints

    def _send_moves(self) -> None:
        """Before a step computes: what leaves is taken before it is written over."""
        tier = self.scheduler.cache.tier
        if tier is not None and self.mover is not None:
            self.mover.move(tier.take_moves())

    def _take_in(self, wait_s: float) -> None:
        """After a step has computed: a page that comes may be one whose old content the step still copied from."""
        cache, mover = self.scheduler.cache, self.mover
        assert cache.tier is not None and mover is not None
        for moved in mover.moved(wait_s if cache.tier.is_reading else 0.0):
            cache.take_in(moved)

    def _note_prefill(self, plan: StepPlan, seconds: float) -> None:
        """What computing a token costs, from steps that are mostly prompts: a reload must beat it."""
        num_tokens = sum(len(row.tokens) for row in plan.rows)
        tier = self.scheduler.cache.tier
        if tier is not None and num_tokens >= _PREFILL_TOKENS and num_tokens > 4 * len(plan.rows) and seconds > 0:
            tier.costs.note_prefill(num_tokens, seconds)

    def write_behind(self) -> bool:
        """For idle time: write a few pages to the tier; True where more is to be done."""
        tier = self.scheduler.cache.tier
        if self.mover is None or tier is None or not tier.is_behind:
            return False
        tier.write_some()
        self._send_moves()
        self._take_in(0.0)
        return tier.is_behind

    def close(self) -> None:
        """The loop is over: what is at rest is written, for so long as one may wait for it."""
        if self.mover is None:
            return
        give_up_s = time.monotonic() + _LAST_WRITES_S
        while self.write_behind() and time.monotonic() < give_up_s:
            time.sleep(_WRITE_PAUSE_S)
        self.mover.close()

    @property
    def num_masks(self) -> tuple[int, int]:
        """Places drawn under a grammar: masks that the device made, and the host; 0 where the executor does not say."""
        return getattr(self.executor, "num_device_masks", 0), getattr(self.executor, "num_host_masks", 0)

    def seed_of(self, request_id: int) -> int | None:
        """What a turn without a seed draws with; None where the executor does not say."""
        ask = getattr(self.executor, "seed_of", None)
        return None if ask is None else int(ask(request_id))

    def take_ended(self) -> list[Ended]:
        """The turns that ended since the last call."""
        ended = self.scheduler.take_ended()
        if self.listener is not None:
            for each in ended:
                self.listener.ended(each)
        return ended

    def gap(self, branch: BranchHandle, kind: GapKind, tool: str | None, expected_s: float | None) -> None:
        if self.listener is not None:
            self.listener.gap(branch, kind, tool, expected_s)

    def left(self, branch: BranchHandle) -> None:
        if self.listener is not None:
            self.listener.left(branch.program_id, branch.branch_id)

    def closed(self, program_id: str) -> None:
        if self.listener is not None:
            self.listener.closed(program_id)

    def recover(self, error: Exception) -> list[RequestEvent]:
        """A step raised: everything in flight fails, nothing cached is trusted, and the next request finds an
        engine."""
        self.scheduler.fail_all(to_failed(_as_engine_failure(error)))
        if self.scheduler.cache.tier is not None:
            self.scheduler.cache.tier.distrust()
        self.scheduler.cache.flush()
        return self.scheduler.commit(StepResult(()))


def _as_engine_failure(error: Exception) -> EngineFailed:
    return EngineFailed(f"a step of the engine failed ({type(error).__name__}); the log has the details")


class EngineLoop:
    """An engine on a thread of its own. `post` and `call` are for any thread; everything else happens on the loop's."""

    def __init__(
        self,
        engine: Engine,
        on_step: Callable[[Sequence[RequestEvent], Sequence[Ended]], None],
        on_death: Callable[[EngineFailed], None],
    ) -> None:
        """`on_step`   what a step had to tell, on the loop's thread
        `on_death`  the loop is over, and not because it was stopped"""
        self._engine, self._on_step, self._on_death = engine, on_step, on_death
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ramet-engine", daemon=True)
        self._is_over = False
        self._border = threading.Lock()
        """Between `post` and the end of the loop: what was posted before it is answered, what comes after is
        refused."""
        self._num_failures = 0

    def start(self) -> None:
        """Once is enough: a client that was built running may still be entered with `with`."""
        if self._is_over:
            raise EngineFailed("the engine was stopped: build another one")
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self, timeout_s: float | None = 30.0) -> None:
        """Finish the step that runs, and end. What is in flight gets no further events: abort it before."""
        if self._thread.is_alive():
            self._commands.put(None)
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_over

    def post(self, command: Callable[[], None]) -> None:
        """Run `command` between two steps. Raises EngineFailed where the loop is over."""
        with self._border:
            if not self.is_alive:
                raise EngineFailed("the engine is not running")
            self._commands.put(command)

    def call(self, question: Callable[[], T]) -> "Future[T]":
        """Ask something between two steps."""
        future: Future[T] = Future()

        def answer() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(question())
                except Exception as error:
                    future.set_exception(error)

        self.post(answer)
        return future

    # On the loop's thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        death: Exception | None = None
        try:
            while self._obey():
                if self._engine.has_work:
                    self._step()
        except Exception as error:
            log.exception("the engine's loop ended")
            death = error
        with self._border:
            self._is_over = True
        self._drain()
        if death is not None:
            self._on_death(_as_engine_failure(death))
        try:
            self._engine.close()
        except Exception:  # a device that is gone can't be read from any more
            log.exception("what was at rest could not be written to the tier")

    def _obey(self) -> bool:
        """Run what was posted; wait for something where there is nothing to do. False: stop."""
        waits = not self._engine.has_work
        if waits:
            self._check()
        while True:
            writes = waits and self._engine.write_behind()
            try:
                command = self._commands.get(block=waits, timeout=_WRITE_PAUSE_S if writes else None)
            except queue.Empty:
                if writes:
                    continue
                return True
            if command is None:
                return False
            command()
            waits = False

    def _step(self) -> None:
        num_before = self._engine.num_computed_steps
        try:
            events = self._engine.step()
            if self._engine.num_computed_steps > num_before:
                self._num_failures = 0
        except Exception as error:
            log.exception("a step failed")
            self._num_failures += 1
            events = self._engine.recover(error)
            if self._num_failures >= _MAX_FAILURES:
                self._tell(events)
                raise
        self._tell(events)

    def _check(self) -> None:
        """Idle: every page must have an owner. A lost one is a bug to be told, not a reason to stop serving."""
        try:
            self._engine.scheduler.check()
        except AssertionError as error:
            log.warning("the page balance is broken: %s", error)

    def _tell(self, events: Sequence[RequestEvent]) -> None:
        ended = self._engine.take_ended()
        if events or ended:
            self._on_step(events, ended)

    def _drain(self) -> None:
        """Commands that came too late still run: each answers somebody."""
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            if command is not None:
                command()
