"""Every error that a user of Ramet can meet. A leaf: imports nothing of ours, and any module may import it.

RametError
├── BadRequest            400  the caller can mend it; carries the field's path
│   ├── ContextOverflow   400  code context_length_exceeded
│   └── GrammarRefused    400  a schema, pattern or grammar that can't be enforced; carries the pointer
├── Unauthorized          401
├── NotFound              404
├── Busy                  429  retry later; carries retry_after_s
├── Unavailable           503  the engine is loading, draining or gone; carries retry_after_s
├── NotBuilt              400  a feature that does not exist yet; says so, and what to use instead (5xx is retried)
├── Cancelled             499  the caller went away, or a branch was cancelled
├── TimedOut              408  a generation ran past its own timeout
├── EngineFailed          500  our fault: an invariant broke or the engine process died
└── ModelError             -   at start, before any request
    ├── ModelNotFound          carries the command that installs it
    ├── WeightsCorrupt         a file is short, torn or not what its header says
    ├── UnsupportedModel       an architecture or a tensor type that Ramet does not know
    └── NotEnoughMemory        names the numbers, and the flag that would fit
"""


class RametError(Exception):
    """Base of all."""

    status: int = 500
    """HTTP status."""
    code: str = "internal_error"
    """A short word for machines."""
    at: str | None = None
    """Path of the offending field (`$.max_tokens`) or JSON Pointer, where there is one."""
    retry_after_s: float | None = None
    """Seconds after which trying again may help; None: it won't, or nobody knows."""


class BadRequest(RametError):
    """The caller can mend it: what was expected, what came, where, and what to do."""

    status = 400
    code = "invalid_request_error"

    def __init__(self, *, expected: str, got: object, at: str, hint: str = "", code: str | None = None) -> None:
        shown = _shorten(repr(got))
        super().__init__(f"expected {expected}, got {shown} - at `{at}`.{' ' + hint if hint else ''}")
        self.expected, self.got, self.hint, self.at = expected, shown, hint, at
        if code is not None:
            self.code = code

    def moved(self, at: str) -> "BadRequest":
        """The same at another path: a part's error seen from the whole."""
        return type(self)(expected=self.expected, got=Verbatim(self.got), at=at, hint=self.hint, code=self.code)


class Verbatim:
    """A text that is shown as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class ContextOverflow(BadRequest):
    """Prompt plus wanted output do not fit in the context, or in the KV pool."""

    def __init__(self, *, num_tokens: int, limit: int, at: str = "$.messages", hint: str = "") -> None:
        super().__init__(
            expected=f"at most {limit} tokens",
            got=num_tokens,
            at=at,
            hint=hint or "Shorten the prompt, or serve the model with a larger --context-length.",
            code="context_length_exceeded",
        )
        self.num_tokens, self.limit = num_tokens, limit


class GrammarRefused(BadRequest):
    """A schema, regex or grammar that Ramet will not enforce, and where in it the reason lies."""

    def __init__(self, *, expected: str, got: object, at: str, hint: str = "", code: str = "grammar_refused") -> None:
        super().__init__(expected=expected, got=got, at=at, hint=hint, code=code)


class Unauthorized(RametError):
    status = 401
    code = "invalid_api_key"


class NotFound(RametError):
    status = 404
    code = "not_found"


class Busy(RametError):
    """A limit of queue, quota or rate was met; try again after `retry_after_s`."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(RametError):
    """The engine is loading, draining or gone."""

    status = 503
    code = "service_unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotBuilt(RametError, NotImplementedError):
    """A feature that Ramet does not have yet. Never a silent drop."""

    status = 400  # client libraries retry 5xx, and the feature will not appear between two tries
    code = "not_implemented"

    def __init__(self, feature: str, *, hint: str = "") -> None:
        super().__init__(f"{feature} is not built yet.{' ' + hint if hint else ''}")


class Cancelled(RametError):
    status = 499
    code = "cancelled"


class TimedOut(RametError):
    status = 408
    code = "timeout"


class EngineFailed(RametError):
    """Our fault. The message is safe to show; the details are in the log."""

    code = "engine_failed"


class ModelError(RametError):
    """Something about a model, met before any request is served."""

    code = "model_error"


class ModelNotFound(ModelError):
    code = "model_not_found"


class WeightsCorrupt(ModelError):
    code = "weights_corrupt"


class UnsupportedModel(ModelError):
    code = "unsupported_model"


class NotEnoughMemory(ModelError):
    code = "not_enough_memory"


def _shorten(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
