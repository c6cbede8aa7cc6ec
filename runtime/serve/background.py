"""Responses that nobody waits for: the server runs them to their end, and keeps them to be fetched, or cancelled."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from ramet.runtime.errors import RametError

Response = dict[str, Any]
Keep = Callable[[Response], None]


class BackgroundResponses:
    """The responses that run now. A key reaches only its own."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, key: str, response: Response, work: Callable[[], Awaitable[Response]], keep: Keep) -> None:
        """Run `work`, which gives the final response. `keep` is called with each state that the response has: queued,
        in_progress, then completed, incomplete, failed or cancelled."""
        keep({**response, "status": "queued"})
        name = key, str(response["id"])

        def ended(task: asyncio.Task[None]) -> None:
            del self._running[name]
            if task.cancelled():  # perhaps before its first line ran
                keep({**response, "status": "cancelled"})

        self._running[name] = asyncio.create_task(_run(response, work, keep))
        self._running[name].add_done_callback(ended)

    async def cancel(self, key: str, response_id: str) -> None:
        """Stop it if it still runs; what it held is free when this returns."""
        task = self._running.get((key, response_id))
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _run(response: Response, work: Callable[[], Awaitable[Response]], keep: Keep) -> None:
    keep({**response, "status": "in_progress"})
    try:
        keep(await work())
    except RametError as error:
        keep({**response, "status": "failed", "error": {"code": error.code, "message": str(error)}})
