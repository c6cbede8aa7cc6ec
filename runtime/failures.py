"""Errors as values and back: a RametError crosses the engine, and a process, as a Failed event. A leaf."""

from ramet.runtime import errors
from ramet.runtime.errors import BadRequest, RametError
from ramet.runtime.types import Failed


def to_failed(error: RametError) -> Failed:
    """The event that says `error`."""
    return Failed(
        status=error.status, code=error.code, message=str(error), at=error.at, retry_after_s=error.retry_after_s
    )


def to_error(failed: Failed) -> RametError:
    """The error that `failed` was made of: of the same class, where its code tells, with the same words."""
    kind = _BY_CODE.get(failed.code) or _BY_STATUS.get(failed.status, RametError)
    error = kind.__new__(kind)
    Exception.__init__(error, failed.message)
    error.status, error.code, error.at, error.retry_after_s = (
        failed.status,
        failed.code,
        failed.at,
        failed.retry_after_s,
    )
    if isinstance(error, BadRequest):
        error.expected, error.got, error.hint = "", "", ""  # they are in the message
    return error


def _all_kinds(kind: type[RametError]) -> list[type[RametError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in _all_kinds(sub))]


_BY_CODE: dict[str, type[RametError]] = {kind.code: kind for kind in reversed(_all_kinds(RametError))}
_BY_CODE |= {"context_length_exceeded": errors.ContextOverflow, "grammar_refused": errors.GrammarRefused}
_BY_STATUS: dict[int, type[RametError]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    404: errors.NotFound,
    408: errors.TimedOut,
    429: errors.Busy,
    499: errors.Cancelled,
    500: errors.EngineFailed,
    503: errors.Unavailable,
}
