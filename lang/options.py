"""What a generation may be told, in one list, and how it becomes a GenerateSpec. Knows no branch and no engine.

The names are those of SGLang's frontend and of the runtime; `GenOptions` is the only place where they are spelled out.
A name that is not in it is an error, never dropped; what an option can't do yet raises NotBuilt.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, get_type_hints

import msgspec

from ramet.constrained.json_options import JsonOptions
from ramet.lang.dtype import Decoder, constraint_of
from ramet.lang.suggest import did_you_mean
from ramet.runtime.errors import BadRequest, NotBuilt
from ramet.runtime.types import GenerateSpec, Sampling, SelectMethod

DEFAULT_MAX_TOKENS = 128
"""Of free text, where neither gen nor run says. A constrained output ends by itself, and gets
DEFAULT_MAX_TOKENS_CONSTRAINED."""
DEFAULT_MAX_TOKENS_CONSTRAINED = 1024
RELAXED_STREAM_INTERVAL = 16
"""Tokens per event where nobody reads along: fewer wake-ups."""
METHODS: tuple[SelectMethod, ...] = (
    "total",
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)


class CommonOptions(TypedDict, total=False):
    """How to sample: for one `gen`, or given to `run`, for every generation of a program that does not say
    otherwise."""

    stop_token_ids: Sequence[int] | None
    stop_regex: str | Sequence[str] | None
    include_stop: bool | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    seed: int | None
    logprobs: int | None
    return_logprob: bool | None
    logprob_start_len: int | None
    top_logprobs_num: int | None
    return_text_in_logprobs: bool | None
    timeout: float | None
    """Seconds for the generation; given to `run`, for the whole program."""


class GenOptions(CommonOptions, total=False):
    """What `gen` takes besides: constraints, of which one may be given."""

    choices: Iterable[str] | None
    choices_method: SelectMethod | None
    dtype: Any
    regex: str | None
    json_schema: str | Mapping[str, object] | type | None
    grammar: Any
    any_order: bool | None
    """JSON may have its keys in any order; False, the default: in the order of the schema."""
    whitespace: Literal["compact", "bounded", "exact"] | None
    unsupported: Literal["error", "declare"] | None
    """A keyword that no grammar can hold: refused, or left to a check at the end (`get_meta_info`: violations)."""
    grammar_drafts: bool | None
    """False: tokens that a grammar forces are computed one by one."""
    tools: Sequence[Any] | None
    tool_choice: str | None


SAMPLING_NAMES = frozenset(get_type_hints(CommonOptions)) | {"max_tokens", "min_tokens", "stop"}
GEN_NAMES = frozenset(get_type_hints(GenOptions)) | SAMPLING_NAMES | {"n"}
_JSON_OPTIONS: Mapping[str, Sequence[object]] = {
    "any_order": (True, False),
    "whitespace": ("compact", "bounded", "exact"),
    "unsupported": ("error", "declare"),
}
_SAMPLER_FIELDS = frozenset(Sampling.__struct_fields__)
_CONSTRAINTS = ("choices", "dtype", "regex", "json_schema", "grammar", "tools")


def check_options(options: Mapping[str, Any], allowed: frozenset[str], where: str) -> dict[str, Any]:
    """The options that were given (None means not given), or what is wrong with them."""
    for name in options:
        if name not in allowed:
            hint = did_you_mean(name, allowed) or f"Known: {', '.join(sorted(allowed))}."
            raise BadRequest(expected=f"an option of {where}", got=name, at=f"$.{name}", hint=hint)
    given = {name: value for name, value in options.items() if value is not None}
    if "stop_regex" in given:
        raise NotBuilt("stop_regex", hint="Use regex=... for the whole output, or stop=... with plain strings.")
    _check_numbers(given)
    json_options(given)
    constraints = [name for name in _CONSTRAINTS if name in given]
    _check_effect(given, constraints)
    if len(constraints) > 1:
        raise BadRequest(
            expected="one constraint",
            got=constraints,
            at=f"$.{constraints[1]}",
            hint="Constraints don't combine: choose one.",
        )
    return given


def json_options(given: Mapping[str, Any]) -> JsonOptions:
    """How JSON is to be written; refused where the option has another value than it may have."""
    for name, allowed in _JSON_OPTIONS.items():
        if (value := given.get(name)) is not None and value not in allowed:
            raise BadRequest(expected=f"one of {list(allowed)}", got=value, at=f"$.{name}")
    return JsonOptions(**{name: given.get(name) for name in _JSON_OPTIONS})


def _check_effect(given: Mapping[str, Any], constraints: Sequence[str]) -> None:
    """Options of JSON stand beside something that may be JSON, or they would be dropped in silence."""
    name = next((name for name in _JSON_OPTIONS if name in given), None)
    if name is not None and not {"dtype", "json_schema", "grammar", "tools"}.intersection(constraints):
        got = constraints or "no constraint"
        raise BadRequest(expected="json_schema, dtype, grammar or tools beside it", got=got, at=f"$.{name}")


def _check_numbers(given: Mapping[str, Any]) -> None:
    for name, minimum in (("max_tokens", 0), ("min_tokens", 0), ("n", 1), ("top_logprobs_num", 0)):
        _check_integer(given, name, minimum)
    for name in (
        "temperature",
        "top_p",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "timeout",
    ):
        value = given.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not number:
            raise BadRequest(expected="a finite number", got=value, at=f"$.{name}")
    if given.get("temperature", 0.0) < 0:
        raise BadRequest(expected="0 or more", got=given["temperature"], at="$.temperature", hint="0 is greedy.")
    if "timeout" in given and given["timeout"] <= 0:
        raise BadRequest(expected="more than 0 seconds", got=given["timeout"], at="$.timeout")


def _check_integer(given: Mapping[str, Any], name: str, minimum: int) -> None:
    value = given.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < minimum):
        raise BadRequest(expected=f"a whole number, {minimum} or more", got=value, at=f"$.{name}")


def to_spec(merged: Mapping[str, Any], *, relaxed: bool) -> tuple[GenerateSpec, Decoder]:
    """One generation: its spec, and how its text becomes a value. `relaxed`: nobody reads along."""
    grammar, decode = constraint_of(merged)
    if grammar is not None:
        grammar = json_options(merged).applied(grammar)
    sampling = {name: merged[name] for name in _SAMPLER_FIELDS if name in merged}
    if "allowed_token_ids" in sampling:
        sampling["allowed_token_ids"] = tuple(sampling["allowed_token_ids"])
    default_max = DEFAULT_MAX_TOKENS if grammar is None else DEFAULT_MAX_TOKENS_CONSTRAINED
    spec = GenerateSpec(
        max_tokens=merged.get("max_tokens", default_max),
        min_tokens=merged.get("min_tokens", 0),
        stop=_strings(merged.get("stop")),
        include_stop=merged.get("include_stop", False),
        stop_token_ids=tuple(merged.get("stop_token_ids", ())),
        ignore_eos=merged.get("ignore_eos", False),
        skip_special_tokens=merged.get("skip_special_tokens", True),
        sampling=Sampling(**sampling),
        grammar=grammar,
        grammar_drafts=merged.get("grammar_drafts", True),
        timeout_s=merged.get("timeout"),
        stream_interval=RELAXED_STREAM_INTERVAL if relaxed else 1,
        **_logprobs(merged),
    )
    return spec, decode


def _logprobs(options: Mapping[str, Any]) -> dict[str, Any]:
    """`logprobs=n` is ours; SGLang's frontend says return_logprob, top_logprobs_num, logprob_start_len (-1: none)."""
    wanted = options.get("logprobs")
    if wanted is None and (options.get("return_logprob") or options.get("top_logprobs_num")):
        wanted = options.get("top_logprobs_num", 0)
    if wanted is None:
        return {}
    start = options.get("logprob_start_len", -1)
    prompt = {"prompt_logprobs": wanted, "prompt_logprobs_start": start} if start >= 0 else {}
    return {"logprobs": wanted, **prompt}


def _strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Iterable) else (stop,)
    if any(not isinstance(text, str) or not text for text in stops):
        hint = "Token ids go into stop_token_ids." if any(isinstance(item, int) for item in stops) else ""
        raise BadRequest(expected="a text, or a list of texts, none empty", got=stop, at="$.stop", hint=hint)
    return stops


def with_seed(spec: GenerateSpec, offset: int) -> GenerateSpec:
    """The spec of the offset-th of n samples: a seed of its own, where the first has one."""
    if spec.sampling.seed is None or offset == 0:
        return spec
    return msgspec.structs.replace(
        spec, sampling=msgspec.structs.replace(spec.sampling, seed=spec.sampling.seed + offset)
    )
