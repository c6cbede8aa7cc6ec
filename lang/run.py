"""One run of a program: its branches, its engine client, its end. Knows lanes and backends, not the user's function.

A run ends in one of three ways: everything said is done, an exception leaves the body, or it is cancelled (Ctrl-C, a
timeout, a parent that ended). In each case its program is closed in the engine, which frees what only it held.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from ramet.lang.backends.base import Backend
from ramet.lang.branch import Branch
from ramet.lang.interpreter import Lane
from ramet.lang.ir import Placeholder
from ramet.lang.loop import PROGRAMS, wait_async
from ramet.lang.site import NOWHERE, caller
from ramet.lang.values import Slot
from ramet.runtime.client import EngineClient
from ramet.runtime.errors import Cancelled, RametError, TimedOut
from ramet.runtime.types import BranchHandle, ProgramSpec

log = logging.getLogger("ramet.lang")
_END_LIMIT_S = 10.0
"""How long an interrupted run waits for the engine to let go."""

CURRENT: ContextVar["Run | None"] = ContextVar("ramet_run", default=None)
"""The run whose body the caller is in: the parent of a run that starts now."""


class HasBranch(Protocol):
    """A state: one face of a branch."""

    branch: Branch

    def __hash__(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run is told beside its program's arguments."""

    backend: Backend
    name: str
    program: ProgramSpec
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Sampling options of every gen that does not say otherwise."""
    parameters: frozenset[str] = frozenset()
    """Names of the program's arguments."""
    streaming: bool = False
    timeout_s: float | None = None


class Run:
    """See the module."""

    tracing = False

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.name, self.defaults, self.streaming = settings.name, settings.defaults, settings.streaming
        self.parent = CURRENT.get()
        self.client: EngineClient | None = None
        self.program_id: str | None = settings.program.program_id
        self.branches: list[Branch] = []
        self.children: set[Run] = set()
        """Programs that this one started and that still run."""
        self.error: BaseException | None = None
        self.unfilled: set[str] = set()
        """Names of arguments that were said in braces; each is warned of once."""
        self.seen: set[int] = set()
        """Branches (by id) whose error was raised or asked for."""
        self.body: Future[None] = Future()
        """Done when the program's function has returned or failed, and the run has ended."""
        self._awaited: list[tuple[Branch, str, Future[Slot]]] = []
        self._ending: Future[None] | None = None
        self._lock = threading.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self.root = self._begin()
        if self.parent is not None:
            self.parent.children.add(self)

    def _begin(self) -> Branch:
        root = Branch(self, self.lane())
        root.lane.submit(root.lane.open, "run()", NOWHERE)
        if self.settings.timeout_s is not None:
            PROGRAMS.loop.call_soon_threadsafe(self._arm, self.settings.timeout_s)
        return root

    def _arm(self, timeout_s: float) -> None:
        error = TimedOut(f"program {self.name} ran past its timeout of {timeout_s} s")
        self._timer = PROGRAMS.loop.call_later(timeout_s, self._cancel_lanes, error)

    def lane(self) -> Lane:
        return Lane(self)

    async def connect(self) -> BranchHandle:
        """Open the program in the engine. On the loop, once."""
        self.client = await self.settings.backend.connect()
        spec = self.settings.program
        handle = await self.client.open(spec)
        self.program_id = handle.program_id
        return handle

    # Watching from outside

    def when_said(self, branch: Branch, name: str) -> "Future[Slot]":
        """The slot of a name, as soon as the program has said it."""
        future: Future[Slot] = Future()
        with self._lock:
            self._awaited.append((branch, name, future))
        self.said()
        return future

    def check_filled(self, text: str) -> None:
        """`"{topic}"` where the program has an argument `topic` is mostly a forgotten f; it may be meant, so it is only
        warned of."""
        if "{" in text:
            for name in self.settings.parameters - self.unfilled:
                if f"{{{name}}}" in text:
                    self.unfilled.add(name)
                    log.warning(
                        'program %s says "{%s}" as it stands, and %s is its argument: is an f missing before the '
                        "quotes? (at %s)", self.name, name, name, caller(),
                    )  # fmt: skip

    def said(self) -> None:
        """A branch has a new name: tell those who wait for it."""
        with self._lock:
            found = [(item, slot) for item in self._awaited if (slot := item[0].transcript.find(item[1])) is not None]
            for item, _ in found:
                self._awaited.remove(item)
        for (_, _, future), slot in found:
            future.set_result(slot)

    def body_ended(self, error: BaseException | None = None) -> None:
        """Names that were never said are errors now."""
        self.error = self.error or error
        if not self.body.done():
            self.body.set_result(None)
        with self._lock:
            awaited, self._awaited = self._awaited, []
        for branch, name, future in awaited:
            future.set_exception(self.error or branch.unknown(name))

    # Ending

    def end(self, error: BaseException | None = None) -> "Future[None]":
        """Wait for everything said (or cancel it, where there is an error), then close. Idempotent."""
        with self._lock:
            self.error = self.error or error  # before anything is cancelled: whoever sees that asks why
            if self._ending is None:
                self._ending = PROGRAMS.start(self._end(error))
        if error is not None:
            PROGRAMS.loop.call_soon_threadsafe(self._cancel_lanes, error)
        return self._ending

    def abandon(self, error: BaseException) -> None:
        """End with an error and wait a little for the engine to let go."""
        wait_for_futures([self.end(error)], timeout=_END_LIMIT_S)

    def _cancel_lanes(self, error: BaseException) -> None:
        reason = error if isinstance(error, RametError) else Cancelled(f"program {self.name} ended: {error!r}")
        for child in list(self.children):
            child._cancel_lanes(reason)
        for branch in self.branches:
            branch.lane.cancel(reason)
            branch.cancel_early()

    async def _end(self, error: BaseException | None) -> None:
        try:
            if error is not None:
                self._cancel_lanes(error)
            await self._drained()
            if error is None:
                await self._keep_texts()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for branch in self.branches:
                branch.cancel_early()
            if self.parent is not None:
                self.parent.children.discard(self)
            await self._close()

    async def _drained(self) -> None:
        """Branches may fork others while we wait, so look again until nothing is new."""
        seen = 0
        while seen < len(self.branches):
            waiting = self.branches[seen:]
            seen = len(self.branches)
            ends = [branch.drained() for branch in waiting]
            await asyncio.gather(*map(wait_async, ends), return_exceptions=True)

    async def _keep_texts(self) -> None:
        for branch in self.branches:
            if branch.faces and branch.lane.error is None and not branch.lane.closed:
                branch.last_text = await branch.lane.text()

    async def _close(self) -> None:
        root = self.root.lane.handle
        try:
            if self.client is not None and root is not None:
                await self.client.close(root, program=True)
        finally:
            for branch in self.branches:
                branch.lane.closed = True
                branch.lane.stream.close(branch.lane.error)

    def close_branch(self, branch: Branch, error: RametError | None = None) -> "Future[None]":
        """End one branch: cancel it where there is an error, wait for it, keep its text, free it."""
        branch.joined = True
        return PROGRAMS.start(self._close_branch(branch, error))

    async def _close_branch(self, branch: Branch, error: RametError | None) -> None:
        below = [child for fork in branch.forks for child in fork.children if not child.joined]
        for child in below:
            await self._close_branch(child, error)
        if error is not None:
            branch.lane.cancel(error)
            self.seen.add(id(branch))
        await asyncio.gather(wait_async(branch.drained()), return_exceptions=True)
        if branch.faces and branch.lane.error is None and self.client is not None:
            branch.last_text = await branch.lane.text()
        await branch.lane.close()

    def unseen_error(self) -> BaseException | None:
        """The root's error, if nobody has met it. Those of other branches are logged."""
        for branch in self.branches[1:]:
            if branch.lane.error is not None and id(branch) not in self.seen:
                log.warning("a branch of %s failed and nobody asked: %s", self.name, branch.lane.error)
        root_error = self.root.lane.error
        return root_error if root_error is not None and id(self.root) not in self.seen else None


class TracingLane(Lane):
    """Runs nothing: what would be generated is there at once, as a placeholder."""

    def post(self, work: Callable[[], None]) -> None:
        pass

    def submit(self, work: Callable[[], Any], what: str, site: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    def launch(self, slot: Slot, work: Callable[[], Any]) -> None:
        placeholder = Placeholder(slot.name or "…")
        slot.fill(placeholder, placeholder)


class TracingRun(Run):
    """A run without an engine: its branches only write down what is said to them."""

    tracing = True

    def _begin(self) -> Branch:
        return Branch(self, self.lane())

    def lane(self) -> Lane:
        return TracingLane(self)
