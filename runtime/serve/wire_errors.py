"""Our errors as the bodies that OpenAI's and Anthropic's SDKs expect (clients.md R15), without path or traceback."""

import logging
from collections.abc import Mapping

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.errors import BadRequest, RametError

log = logging.getLogger("ramet.serve")

_ANTHROPIC_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OPENAI_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}


def is_anthropic(path: str) -> bool:
    return path.startswith("/v1/messages")


def openai_body(error: RametError) -> dict[str, object]:
    """`{"error": {"message", "type", "param", "code"}}`"""
    kind = _OPENAI_TYPES.get(error.status, "internal_error" if error.status >= 500 else "invalid_request_error")
    param = error.at.removeprefix("$.") if error.at else None
    return {"error": {"message": str(error), "type": kind, "param": param, "code": error.code}}


def anthropic_body(error: RametError) -> dict[str, object]:
    """`{"type": "error", "error": {"type", "message"}}`"""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def error_body(error: RametError, path: str) -> dict[str, object]:
    return anthropic_body(error) if is_anthropic(path) else openai_body(error)


def error_response(error: RametError, path: str) -> Response:
    """The whole answer: status, body, Retry-After where waiting helps, and a word to SDKs where a retry can't."""
    status = error.status
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, min(120, round(error.retry_after_s))))
    elif status >= 500 or isinstance(error, BadRequest):
        headers["x-should-retry"] = "false"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return json_response(error_body(error, path), status=status, headers=headers)


def json_response(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(body), status_code=status, media_type="application/json", headers=dict(headers or {})
    )


async def on_ramet_error(http: Request, error: Exception) -> Response:
    """FastAPI handler for our own errors."""
    assert isinstance(error, RametError)
    return error_response(error, http.url.path)


async def on_http_exception(http: Request, error: Exception) -> Response:
    """FastAPI's own 404, 405 and 422, in the client's dialect."""
    status = int(getattr(error, "status_code", 500))
    ours = RametError(
        {404: f"no route {http.url.path}", 405: f"{http.method} is not allowed here"}.get(status, str(error))
    )
    ours.code = {404: "not_found", 405: "method_not_allowed"}.get(status, "invalid_request_error")
    ours.status = status
    return error_response(ours, http.url.path)


async def on_invalid_parameter(http: Request, error: Exception) -> Response:
    """A path or query parameter of the wrong type: FastAPI's words, without the file that it names."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    at = "$." + ".".join(str(part) for part in first["loc"][1:])
    return error_response(BadRequest(expected=first["msg"], got=first.get("input"), at=at), http.url.path)


async def on_unexpected(http: Request, error: Exception) -> Response:
    """Anything else is our fault: logged with its traceback, told to the client without."""
    log.error("request failed unexpectedly: %s %s", http.method, http.url.path, exc_info=error)
    ours = RametError("the server met an error of its own; its log has the details")
    return error_response(ours, http.url.path)
