"""The one asyncio loop that drives every branch, in a thread of its own. Knows nothing of programs.

Programs run in their own threads or loops and hand coroutines over; so engine clients, which may be bound to a loop,
only ever see this one, and a program that computes for a while holds nobody up.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from ramet.runtime.errors import BadRequest

T = TypeVar("T")


class LoopThread:
    """A loop that runs for ever in a daemon thread, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            with self._lock:
                if self._loop is None:
                    self._start()
        assert self._loop is not None
        return self._loop

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="ramet-programs", daemon=True)
        self._thread.start()
        self._loop = loop

    def forget(self) -> None:
        """In a forked child process, where the thread does not exist: the next use starts one."""
        self._lock, self._loop, self._thread = threading.Lock(), None, None

    def inside(self) -> bool:
        """Is the caller the loop's own thread, which must never block?"""
        return threading.current_thread() is self._thread

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop; may be called from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)


PROGRAMS = LoopThread()
"""The loop of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PROGRAMS.forget)


def wait(future: Future[T]) -> T:
    """Block until it is there. A thread other than the loop's only."""
    if not future.done():
        refuse_to_block()
    return future.result()


def refuse_to_block() -> None:
    """An error in the loop's own thread, where waiting would stop everything, the awaited thing too."""
    if PROGRAMS.inside():
        raise BadRequest(
            expected="a waiting call outside the event loop",
            got="one inside it",
            at="state",
            hint="In async tools and async programs use the async form: await prog.arun(...), await s['x'].",
        )


async def wait_async(future: Future[T]) -> T:
    """Await it from any loop. When the waiter is cancelled the work is not: whoever owns the work decides that."""
    waiting: asyncio.Future[T] = asyncio.wrap_future(future)
    return await asyncio.shield(waiting)
