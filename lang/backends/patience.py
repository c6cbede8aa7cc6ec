"""Waiting for a server that was started a moment ago: it loads its model, or has not even opened its port yet."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from ramet.lang.backends.http import HttpClient
from ramet.runtime.errors import Unavailable

T = TypeVar("T")
log = logging.getLogger("ramet")

STARTS_WITHIN_S = 10.0
"""How long nobody may answer: a server opens its port within seconds of its start, whatever it loads afterwards."""
_POLL_S = 0.1
_PASSING = ("loading", "restarting", "ready")


class _State(NamedTuple):
    status: str
    """As /ready says; "": nobody answers."""
    progress: str


async def once_ready(http: HttpClient, connect: Callable[[], Awaitable[T]], wait_s: float) -> T:
    """What `connect` gives, tried again while the server says that it is on its way. Unavailable after `wait_s`."""
    loop = asyncio.get_running_loop()
    began = last_answer = loop.time()
    told = False
    while True:
        try:
            return await connect()
        except Unavailable as error:
            state, now = await _state(http), loop.time()
            if state.status:
                last_answer = now
            _give_up(http, error, state, waited_s=now - began, silent_s=now - last_answer, wait_s=wait_s)
        if not told:
            log.warning("waiting for %s: %s", http.base_url, _words(state))
            told = True
        await asyncio.sleep(_POLL_S)


def _give_up(
    http: HttpClient, error: Unavailable, state: _State, *, waited_s: float, silent_s: float, wait_s: float
) -> None:
    """Raise where more waiting can't help, or has taken long enough."""
    if not state.status:
        if silent_s >= min(STARTS_WITHIN_S, wait_s):
            raise error
    elif state.status not in _PASSING:
        raise error
    elif waited_s >= wait_s:
        message = f"{http.base_url} is not ready after {waited_s:.0f} s: {_words(state)}"
        raise Unavailable(f"{message}. RuntimeEndpoint(wait_s=...) waits longer.", retry_after_s=2) from None


async def _state(http: HttpClient) -> _State:
    try:
        response = await http.request("GET", "/ready")
    except (Unavailable, ConnectionError, asyncio.IncompleteReadError):
        return _State("", "")
    try:
        body = json.loads(response.body)
        loading = body.get("loading") or {}
        done, total = loading.get("bytes_done", 0), loading.get("bytes_total", 0)
        return _State(str(body["status"]), f" ({done / 1e6:.0f} of {total / 1e6:.0f} MB)" if total else "")
    except (ValueError, KeyError, AttributeError, TypeError):  # something before the server that answers for it
        return _State("loading", "")


def _words(state: _State) -> str:
    return f"the engine is {state.status}{state.progress}" if state.status else "nobody answers yet"
