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


def failure(error: RametError, path: str) -> bytes:
    """An error in mid-stream (R14)."""
    body = error_body(error, path)
    return named(body) if "type" in body else data(body)


def response(blocks: AsyncIterator[bytes], *, path: str, keep_alive_s: float) -> StreamingResponse:
    """The HTTP answer. Our errors become its last event; a silent stream says `: keep-alive` now and then."""
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    kept = _kept_alive(_with_failure(blocks, path), keep_alive_s)
    return StreamingResponse(kept, media_type="text/event-stream", headers=headers)


async def _with_failure(blocks: AsyncIterator[bytes], path: str) -> AsyncIterator[bytes]:
    try:
        async for block in blocks:
            yield block
    except RametError as error:
        yield failure(error, path)


async def _kept_alive(blocks: AsyncIterator[bytes], every_s: float) -> AsyncIterator[bytes]:
    following = asyncio.ensure_future(anext(blocks, None))
    try:
        while True:
            done, _ = await asyncio.wait([following], timeout=every_s)
            if not done:
                yield comment("keep-alive")
                continue
            block = following.result()
            if block is None:
                return
            following = asyncio.ensure_future(anext(blocks, None))
            yield block
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        close = getattr(blocks, "aclose", None)
        if close is not None:
            await close()
