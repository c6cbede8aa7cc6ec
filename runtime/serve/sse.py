"""Server-sent events, by hand: `data:` lines, named events where a dialect wants them, comments to keep a line alive.

No `id:` and no `retry:`, ever: clients in the wild crash on both (clients.md R9).
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from ramet.runtime.errors import RametError
from ramet.runtime.serve.wire_errors import error_body
from ramet.runtime.types import Paused, Queued, Resumed

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def data(body: Any) -> bytes:
    """An unnamed event."""
    return b"data: " + _encode(body) + b"\n\n"


def named(body: dict[str, Any]) -> bytes:
    """An event named by its own `type`."""
    return b"event: " + str(body["type"]).encode() + b"\ndata: " + _encode(body) + b"\n\n"


def comment(text: str) -> bytes:
    """A line that every client ignores."""
    return b": " + text.replace("\n", " ").encode() + b"\n\n"


STATE_HEADER = "x-ramet-events"
"""A request with this header set to 1 gets changes of state as named events."""


def state_change(event: Queued | Paused | Resumed, number: int, *, as_event: bool) -> bytes:
    """What the scheduler did with choice `number`: a comment, or a named event where the client asked for those."""
    what: dict[str, Any] = msgspec.to_builtins(event)
    if as_event:
        return named({**what, "type": f"ramet.{what['type']}", "index": number})
    said = " ".join(f"{name}={value}" for name, value in what.items() if name != "type" and value is not None)
    return comment(f"{what['type']} {said}")


def failure(error: RametError, path: str) -> bytes:
    """An error in mid-stream (R14)."""
    body = error_body(error, path)
    return named(body) if "type" in body else data(body)


def response(
    blocks: AsyncIterator[bytes], *, path: str, keep_alive_s: float, notes: asyncio.Queue[bytes] | None = None
) -> StreamingResponse:
    """The HTTP answer. Our errors become its last event; a silent stream says `: keep-alive` now and then. `notes` go
    out between blocks, as they come."""
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    kept = _kept_alive(_with_failure(blocks, path), keep_alive_s, notes or asyncio.Queue())
    return StreamingResponse(kept, media_type="text/event-stream", headers=headers)


async def _with_failure(blocks: AsyncIterator[bytes], path: str) -> AsyncIterator[bytes]:
    try:
        async for block in blocks:
            yield block
    except RametError as error:
        yield failure(error, path)


async def _kept_alive(
    blocks: AsyncIterator[bytes], every_s: float, notes: asyncio.Queue[bytes]
) -> AsyncIterator[bytes]:
    following, note = asyncio.ensure_future(anext(blocks, None)), asyncio.ensure_future(notes.get())
    try:
        while True:
            done, _ = await asyncio.wait([following, note], timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                yield comment("keep-alive")
                continue
            if note in done:
                said, note = note.result(), asyncio.ensure_future(notes.get())
                yield said
                continue
            block = following.result()
            if block is None:
                return
            following = asyncio.ensure_future(anext(blocks, None))
            yield block
    finally:
        note.cancel()
        following.cancel()
        await asyncio.gather(following, note, return_exceptions=True)
        close = getattr(blocks, "aclose", None)
        if close is not None:
            await close()
