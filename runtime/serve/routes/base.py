"""What every route does around its adapter: find the context, read the body, follow the events, answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.errors import RametError
from ramet.runtime.serve import sse
from ramet.runtime.serve.account import discreet
from ramet.runtime.serve.body import decode, read_body
from ramet.runtime.serve.context import ServeContext
from ramet.runtime.serve.disconnect import until_gone
from ramet.runtime.serve.identify import Asker
from ramet.runtime.serve.routes.accounting import Entry, accounted
from ramet.runtime.serve.state import ServerState
from ramet.runtime.serve.turn import Choice, Turn, closing, merged, run_turn
from ramet.runtime.serve.wire_errors import json_response
from ramet.runtime.types import Finished, Paused, Queued, Resumed

T = TypeVar("T")


def state_of(http: Request) -> ServerState:
    state: ServerState = http.app.state.ramet
    return state


def context_of(http: Request) -> ServeContext:
    """The served model, or Unavailable while there is none."""
    return state_of(http).ready_context()


def asker_of(http: Request) -> Asker:
    return Asker(http.scope.get("state", {}).get("key", ""), http.headers)


async def body_of(http: Request, kind: type[T]) -> T:
    config = state_of(http).config
    raw = await read_body(http, max_bytes=config.max_body_bytes)
    return decode(raw, kind, max_depth=config.max_json_depth)


async def numbered(context: ServeContext, turns: Sequence[Turn]) -> AsyncIterator[Choice]:
    """The events of several turns at once: choice k of turn i has number i * n + k."""
    async with closing(merged([run_turn(context.engine, turn, context.kept) for turn in turns])) as choices:
        async for index, (number, event) in choices:
            yield Choice(index * turns[index].n + number, discreet(event, context.config))


async def logged(events: AsyncIterator[Choice], http: Request, turn: Turn) -> AsyncIterator[Choice]:
    """The same events; when they end, one line says what the request cost and how it ended."""
    entry = Entry(turn.request_id, turn.program.program_id, turn.prompt, turn.spec)
    with accounted(http, state_of(http), entry) as finished:
        async with closing(events) as choices:
            async for choice in choices:
                if isinstance(choice.event, Finished):
                    finished.append(choice.event)
                yield choice


async def answer(
    http: Request,
    events: AsyncIterator[Choice],
    *,
    stream: bool,
    collect: Callable[[AsyncIterator[Choice]], Any],
    blocks: Callable[[AsyncIterator[Choice]], AsyncIterator[bytes]],
) -> Response:
    """One JSON object or a stream of events. Errors before the first event are HTTP errors, also of a stream."""
    if not stream:
        return json_response(await until_gone(http, collect(events)))
    notes: asyncio.Queue[bytes] = asyncio.Queue()
    as_events = http.headers.get(sse.STATE_HEADER) == "1"
    begun = await until_gone(http, _begin(_noting(events, notes, as_events=as_events)))
    config = state_of(http).config
    return sse.response(blocks(begun), path=http.url.path, keep_alive_s=config.keep_alive_s, notes=notes)


async def _noting(
    events: AsyncIterator[Choice], notes: asyncio.Queue[bytes], *, as_events: bool
) -> AsyncIterator[Choice]:
    """The same events; those that no dialect has are noted beside them."""
    async with closing(events) as choices:
        async for choice in choices:
            if isinstance(choice.event, Queued | Paused | Resumed):
                notes.put_nowait(sse.state_change(choice.event, choice.number, as_event=as_events))
            yield choice


async def _begin(events: AsyncIterator[Choice]) -> AsyncIterator[Choice]:
    """Wait for the first event, so that a refusal is still a status code."""
    try:
        first = await anext(events, None)
    except BaseException:
        await _close(events)
        raise
    return _resumed(first, events)


async def _resumed(first: Choice | None, events: AsyncIterator[Choice]) -> AsyncIterator[Choice]:
    async with closing(events) as rest:
        if first is not None:
            yield first
        async for choice in rest:
            yield choice


async def _close(events: AsyncIterator[Choice]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        with contextlib.suppress(RametError):
            await close()
