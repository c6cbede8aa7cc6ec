"""The ASGI gate in front of every route: API keys, CORS, HEAD, request ids. Plain ASGI, so streams pass untouched."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramet.runtime.errors import Unauthorized
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.context import new_id
from ramet.runtime.serve.wire_errors import error_response

OPEN_PATHS = ("/health", "/ready")
"""Answered without a key."""


class Gate:
    """Lets a request in, or answers it."""

    def __init__(self, app: ASGIApp, config: ServeConfig) -> None:
        self._app = app
        self._keys = tuple(config.api_keys)
        self._origins = tuple(config.allow_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        reply = _with_headers(send, self._common_headers(headers))
        if scope["method"] == "OPTIONS" and self._allowed(headers.get("origin")):
            await _preflight(headers, reply)
            return
        key = self._key(headers)
        if key is None and self._keys and scope["path"] not in OPEN_PATHS:
            refused = Unauthorized("expected a known API key, as `Authorization: Bearer KEY` or `x-api-key: KEY`")
            await error_response(refused, scope["path"])(scope, receive, reply)
            return
        scope.setdefault("state", {})["key"] = hashlib.sha256(key.encode()).hexdigest()[:32] if key else ""
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # a copy: the server below goes by its own, and sends no body for HEAD
            reply = _without_body(reply)
        await self._app(scope, receive, reply)

    def _key(self, headers: Headers) -> str | None:
        """The request's key if it is one of ours. Every key is compared, each in constant time."""
        given = headers.get("x-api-key") or _bearer(headers.get("authorization"))
        if given is None:
            return None
        matches = [key for key in self._keys if hmac.compare_digest(key.encode(), given.encode("utf-8", "replace"))]
        return matches[0] if matches else None

    def _allowed(self, origin: str | None) -> bool:
        return origin is not None and ("*" in self._origins or origin in self._origins)

    def _common_headers(self, headers: Headers) -> list[tuple[str, str]]:
        common = [("x-request-id", headers.get("x-request-id") or new_id("req_"))]
        origin = headers.get("origin")
        if origin is not None and self._allowed(origin):
            common += [("access-control-allow-origin", origin), ("vary", "Origin")]
        return common


def _bearer(value: str | None) -> str | None:
    scheme, _, token = (value or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


async def _preflight(headers: Headers, send: Send) -> None:
    wanted = headers.get("access-control-request-headers", "*")
    answer = [
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", wanted.encode("latin-1", "replace")),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})


def _with_headers(send: Send, extra: Sequence[tuple[str, str]]) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in extra:
                headers[name] = value
        await send(message)

    return wrapped


def _without_body(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return wrapped
