"""From the engine's thread to coroutines, in whatever event loops they run. Knows ids and events.

The engine publishes once a step; each event loop is woken at most once for it, whatever the number of its streams.
"""

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from ramet.runtime.failures import to_error
from ramet.runtime.scheduler.scheduler import RequestEvent
from ramet.runtime.types import Event, Failed, Finished


class EventStream:
    """The events of one request, for one coroutine."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.is_over = False
        """Its last event was delivered."""

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def deliver(self, event: Event) -> None:
        """On the stream's own loop."""
        self._events.append(event)
        self.is_over = self.is_over or isinstance(event, Finished | Failed)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Event:
        """The next event; a Failed one is raised as the error it says."""
        while not self._events:
            self._waiter = self.loop.create_future()
            await self._waiter
        event = self._events.popleft()
        if isinstance(event, Failed):
            raise to_error(event)
        return event

    async def wait_until_over(self) -> None:
        """Let the rest pass."""
        while not self.is_over:
            self._waiter = self.loop.create_future()
            await self._waiter


class Switchboard:
    """Which stream a request's events go to. Any thread may add; the engine's publishes."""

    def __init__(self, on_orphan: Callable[[int], None]) -> None:
        """`on_orphan`  the request's event loop is gone: nobody will read what it says"""
        self._streams: dict[int, EventStream] = {}
        self._lock = threading.Lock()
        self._on_orphan = on_orphan

    def __len__(self) -> int:
        return len(self._streams)

    def connect(self, request_id: int, stream: EventStream) -> None:
        with self._lock:
            self._streams[request_id] = stream

    def publish(self, events: Sequence[RequestEvent]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[EventStream, Event]]] = defaultdict(list)
        with self._lock:
            for request_id, event in events:
                stream = self._streams.get(request_id)
                if stream is None:
                    continue
                by_loop[stream.loop].append((stream, event))
                if isinstance(event, Finished | Failed):
                    del self._streams[request_id]
        for loop, batch in by_loop.items():
            self._send(loop, batch)

    def _send(self, loop: asyncio.AbstractEventLoop, batch: list[tuple[EventStream, Event]]) -> None:
        try:
            loop.call_soon_threadsafe(_deliver, batch)
        except RuntimeError:  # the loop was closed under its streams
            with self._lock:
                lost = [request_id for request_id, stream in self._streams.items() if stream.loop is loop]
                for request_id in lost:
                    del self._streams[request_id]
            for request_id in lost:
                self._on_orphan(request_id)

    def fail_all(self, failed: Failed) -> None:
        with self._lock:
            request_ids = list(self._streams)
        self.publish([(request_id, failed) for request_id in request_ids])


def _deliver(batch: list[tuple[EventStream, Event]]) -> None:
    for stream, event in batch:
        stream.deliver(event)
