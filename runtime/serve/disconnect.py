"""A client that leaves takes its request with it: whatever it waits for is cancelled, streamed or not."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from ramet.runtime.errors import Cancelled

T = TypeVar("T")


async def until_gone(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or Cancelled as soon as the client's connection closes (row 21 of the bug list)."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(http))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Cancelled("the client went away")
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
