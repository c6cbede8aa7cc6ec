"""What stands between a program and an engine: something that gives an EngineClient when asked.

Making a backend is cheap and does no I/O; `connect` does, on the programs' loop, once.
"""

import asyncio
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from ramet.lang.loop import PROGRAMS, wait
from ramet.runtime.client import EngineClient
from ramet.runtime.errors import BadRequest
from ramet.runtime.types import EngineStatistics, ModelCard


@runtime_checkable
class Backend(Protocol):
    """Anything that a program can run on."""

    async def connect(self) -> EngineClient:
        """The client; the same one at every call. On the programs' loop."""
        ...


class ConnectOnce:
    """Base of our backends: `_connect` runs once, however many programs ask at the same time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[EngineClient] | None = None

    async def _connect(self) -> EngineClient:
        raise NotImplementedError

    async def connect(self) -> EngineClient:
        if self._task is None or (self._task.done() and (self._task.cancelled() or self._task.exception() is not None)):
            self._task = asyncio.get_running_loop().create_task(self._connect())
        return await asyncio.shield(self._task)

    def ready(self) -> ModelCard:
        """Connect now, and wait until it has: what the model is."""
        return wait(PROGRAMS.start(self._card()))

    async def _card(self) -> ModelCard:
        return (await self.connect()).card

    def flush_cache(self) -> int:
        """Drop every cached page that nobody holds; how many."""
        return wait(self._ask_flush())

    def _ask_flush(self) -> "Future[int]":
        async def flush() -> int:
            return await (await self.connect()).flush_cache()

        return PROGRAMS.start(flush())

    def statistics(self) -> EngineStatistics:
        """The engine's counters now."""

        async def ask() -> EngineStatistics:
            return await (await self.connect()).statistics()

        return wait(PROGRAMS.start(ask()))


class Ready:
    """A backend around a client that is there already."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client

    async def connect(self) -> EngineClient:
        return self.client


def as_backend(value: object) -> Backend:
    """A backend as it is, a client wrapped."""
    if isinstance(value, Backend):
        return value
    if hasattr(value, "generate") and hasattr(value, "extend"):
        return Ready(value)  # type: ignore[arg-type]
    raise BadRequest(
        expected="Engine, RuntimeEndpoint, OpenAI, or an EngineClient",
        got=value,
        at="backend",
        hint="ramet.Engine() is local.",
    )
