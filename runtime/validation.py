"""What a client may ask of a generation. A leaf: values in, BadRequest with the field's path out; no engine needed."""

import math
from collections.abc import Callable, Sequence

from ramet.runtime.errors import BadRequest
from ramet.runtime.types import GenerateSpec, Sampling, SelectMethod

_MAX_LOGPROBS = 100
_MAX_STOPS = 64
_MAX_STOP_LENGTH = 4096
"""Characters of all stop strings together: an automaton of so many states is built for them."""
_SELECT_METHODS = (
    "total", "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized",
)  # fmt: skip


def nothing_said() -> BadRequest:
    """There is no text to go on from; a fork before any text is fine, its branches say something first."""
    return BadRequest(
        expected="a prompt",
        got="",
        at="$.prompt",
        hint="Nothing was said before the model is asked: begin with text or a message.",
    )


def check_spec(spec: GenerateSpec, vocabulary_size: int) -> None:
    """Raise BadRequest for the first field that is out of its range."""
    _count("$.max_tokens", spec.max_tokens, optional=True)
    _count("$.min_tokens", spec.min_tokens)
    if spec.max_tokens is not None and spec.min_tokens > spec.max_tokens:
        raise BadRequest(expected=f"at most max_tokens ({spec.max_tokens})", got=spec.min_tokens, at="$.min_tokens")
    _texts("$.stop", spec.stop)
    _token_ids("$.stop_token_ids", spec.stop_token_ids, vocabulary_size)
    _count("$.logprobs", spec.logprobs, optional=True, most=_MAX_LOGPROBS)
    _count("$.prompt_logprobs", spec.prompt_logprobs, optional=True, most=_MAX_LOGPROBS)
    _count("$.prompt_logprobs_start", spec.prompt_logprobs_start)
    _count("$.stream_interval", spec.stream_interval, least=1)
    if spec.timeout_s is not None:
        _number("$.timeout_s", spec.timeout_s, "more than 0 seconds", lambda value: value > 0)
    check_sampling(spec.sampling, vocabulary_size)


def check_sampling(sampling: Sampling, vocabulary_size: int) -> None:
    """The same for the sampling alone."""
    _number("$.temperature", sampling.temperature, "0 to 100", lambda value: 0 <= value <= 100)
    _number("$.top_p", sampling.top_p, "more than 0, at most 1", lambda value: 0 < value <= 1)
    _number("$.min_p", sampling.min_p, "0 to 1", lambda value: 0 <= value <= 1)
    _count("$.top_k", sampling.top_k, least=-1)
    _number("$.repetition_penalty", sampling.repetition_penalty, "more than 0, at most 100", lambda v: 0 < v <= 100)
    _number("$.frequency_penalty", sampling.frequency_penalty, "-2 to 2", lambda value: -2 <= value <= 2)
    _number("$.presence_penalty", sampling.presence_penalty, "-2 to 2", lambda value: -2 <= value <= 2)
    _token_ids("$.logit_bias", tuple(sampling.logit_bias), vocabulary_size)
    for token, bias in sampling.logit_bias.items():
        _number(f"$.logit_bias.{token}", bias, "a finite number", lambda value: True)
    _token_ids("$.allowed_token_ids", sampling.allowed_token_ids, vocabulary_size)
    if sampling.seed is not None and not isinstance(sampling.seed, int):
        raise BadRequest(expected="a whole number", got=sampling.seed, at="$.seed")


def check_choices(choices: Sequence[str], method: SelectMethod, temperature: float) -> None:
    """Of a select."""
    if isinstance(choices, str) or not choices:
        raise BadRequest(expected="a list of one choice or more", got=choices, at="$.choices")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise BadRequest(expected="a text", got=choice, at=f"$.choices[{index}]")
    if len(set(choices)) < len(choices):
        twice = next(choice for index, choice in enumerate(choices) if choice in choices[:index])
        hint = "Equal choices can't be told apart: name each once."
        raise BadRequest(expected="different choices", got=twice, at="$.choices", hint=hint)
    if method not in _SELECT_METHODS:
        raise BadRequest(expected=f"one of {', '.join(_SELECT_METHODS)}", got=method, at="$.method")
    if "" in choices and method != "total":
        hint = "An empty choice has no tokens to compare; only the method 'total' weighs its end."
        raise BadRequest(expected="choices that are not empty", got="", at="$.choices", hint=hint)
    _number("$.temperature", temperature, "0 to 100", lambda value: 0 <= value <= 100)


def _number(at: str, value: object, expected: str, holds: Callable[[float], bool]) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not holds(value):  # type: ignore[arg-type]
        raise BadRequest(expected=expected, got=value, at=at)


def _count(at: str, value: object, *, least: int = 0, most: int | None = None, optional: bool = False) -> None:
    if value is None and optional:
        return
    expected = f"a whole number from {least} on" if most is None else f"a whole number from {least} to {most}"
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        raise BadRequest(expected=expected, got=value, at=at)


def _token_ids(at: str, tokens: Sequence[int], vocabulary_size: int) -> None:
    for token in tokens:
        if not isinstance(token, int) or not 0 <= token < vocabulary_size:
            raise BadRequest(expected=f"token ids from 0 to {vocabulary_size - 1}", got=token, at=at)


def check_tokens(tokens: Sequence[int], vocabulary_size: int, at: str = "$.tokens") -> None:
    """Token ids that a client sends as a prompt."""
    if len(tokens) and not (min(tokens) >= 0 and max(tokens) < vocabulary_size):
        _token_ids(at, tokens, vocabulary_size)


def _texts(at: str, texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise BadRequest(expected="a list of texts", got=texts, at=at)
    if len(texts) > _MAX_STOPS:
        raise BadRequest(expected=f"at most {_MAX_STOPS} texts", got=len(texts), at=at)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise BadRequest(expected="a text that is not empty", got=text, at=f"{at}[{index}]")
    if sum(map(len, texts)) > _MAX_STOP_LENGTH:
        raise BadRequest(expected=f"at most {_MAX_STOP_LENGTH} characters in all", got=sum(map(len, texts)), at=at)
