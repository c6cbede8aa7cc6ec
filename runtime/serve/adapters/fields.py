"""Wire fields -> GenerateSpec, for every dialect: sampling, stops, limits and the many names of constrained output.

Pure: no engine, no tokenizer. Each value out of range is a BadRequest with the field's own path; the engine checks
again, for programs that don't come through HTTP.
"""

import json
import math
from typing import Any

import msgspec

from ramet.constrained.json_options import JsonOptions
from ramet.constrained.spec import Choice, JsonObject, JsonSchema, Lark, Regex, Spec
from ramet.runtime.errors import BadRequest, NotBuilt
from ramet.runtime.literals import TextCodec
from ramet.runtime.serve.adapters.structural_tag import structural_tag
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.protocols.openai_chat import GrammarFields, SamplingFields
from ramet.runtime.types import Sampling


def number(value: float | None, name: str, low: float, high: float, *, above: bool = False) -> None:
    """Refuse a value outside [low, high] (or (low, high] where `above`), NaN and infinities."""
    if value is None:
        return
    inside = low < value <= high if above else low <= value <= high
    if not (math.isfinite(value) and inside):
        bracket = "(" if above else "["
        raise BadRequest(expected=f"a number in {bracket}{low:g}, {high:g}]", got=value, at=f"$.{name}")


def integer(value: float | None, name: str, low: int, high: int) -> int | None:
    """A whole number in [low, high]; 64.0 is one."""
    if value is None:
        return None
    if value != value or value != math.floor(value) or not low <= value <= high:
        raise BadRequest(expected=f"an integer in [{low}, {high}]", got=value, at=f"$.{name}")
    return int(value)


_NEVER = -1e9
"""A bias that no logit outweighs. Where a grammar leaves nothing else, the token comes all the same."""


def to_sampling(
    fields: SamplingFields, *, vocabulary_size: int, temperature: float = 1.0, tokenizer: TextCodec | None = None
) -> Sampling:
    """`temperature` is the dialect's default; the tokenizer is for words that must not come."""
    number(fields.temperature, "temperature", 0, 100)
    number(fields.top_p, "top_p", 0, 1, above=True)
    number(fields.min_p, "min_p", 0, 1)
    number(fields.frequency_penalty, "frequency_penalty", -2, 2)
    number(fields.presence_penalty, "presence_penalty", -2, 2)
    number(fields.repetition_penalty, "repetition_penalty", 0, 100, above=True)
    top_k = integer(fields.top_k, "top_k", -1, 2**31 - 1)
    seed = integer(fields.seed, "seed", -(2**63), 2**64 - 1)
    return Sampling(
        temperature=temperature if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=max(0, top_k or 0) if (top_k or 0) < vocabulary_size else 0,
        min_p=fields.min_p or 0.0,
        repetition_penalty=fields.repetition_penalty or 1.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        presence_penalty=fields.presence_penalty or 0.0,
        logit_bias=to_logit_bias(fields.logit_bias, vocabulary_size) | _banned(fields.bad_words, tokenizer),
        allowed_token_ids=tuple(_ids(fields.allowed_token_ids, "allowed_token_ids", vocabulary_size)),
        seed=seed,
    )


def _banned(words: list[str] | None, tokenizer: TextCodec | None) -> dict[int, float]:
    """The tokens of words that must not come, at the beginning of a line and behind a space."""
    banned: dict[int, float] = {}
    for index, word in enumerate(words or ()):
        assert tokenizer is not None, "routes bring their model's tokenizer"
        spelled = [tokenizer.encode(text) for text in (word, f" {word.lstrip()}") if text.strip()]
        single = [ids[0] for ids in spelled if len(ids) == 1]
        if not single:
            hint = f"`{word}` has several; logit_bias takes tokens one by one."
            raise NotBuilt(f"bad_words[{index}] of more than one token", hint=hint)
        banned |= dict.fromkeys(single, _NEVER)
    return banned


def to_logit_bias(bias: dict[str, float] | None, vocabulary_size: int) -> dict[int, float]:
    """OpenAI's form, token ids as strings, into ours."""
    result: dict[int, float] = {}
    for key, value in (bias or {}).items():
        if not key.isdigit() or int(key) >= vocabulary_size:
            raise BadRequest(expected=f"a token id under {vocabulary_size}", got=key, at="$.logit_bias")
        number(value, f"logit_bias.{key}", -100, 100)
        result[int(key)] = value
    return result


def to_stops(stop: str | list[str | None] | None, config: ServeConfig) -> tuple[str, ...]:
    """Stop strings; null and "" inside a list are what some clients send for none."""
    stops = [stop] if isinstance(stop, str) else [text for text in stop or [] if text]
    if len(stops) > config.max_stops:
        raise BadRequest(expected=f"at most {config.max_stops} stop strings", got=len(stops), at="$.stop")
    return tuple(text for text in stops if text)


def to_stop_ids(fields: SamplingFields, vocabulary_size: int) -> tuple[int, ...]:
    return tuple(_ids(fields.stop_token_ids, "stop_token_ids", vocabulary_size))


def require_trusted(template: str | None, at: str, config: ServeConfig) -> None:
    """A chat template from a client is refused unless the server's owner trusts those who ask."""
    if template is not None and not config.request_templates:
        raise BadRequest(
            expected="no chat template in a request",
            got=template,
            at=at,
            hint="Leave it out to use the model's own, or serve with --request-templates if every client is trusted.",
        )


def to_json_options(fields: GrammarFields, config: ServeConfig) -> JsonOptions:
    """How this request wants its JSON written: as it says, else as the server does."""
    try:
        asked = msgspec.convert(fields.json_options or {}, JsonOptions)
    except msgspec.ValidationError as error:
        expected = "any_order (true or false), whitespace (compact, bounded, exact), unsupported (error, declare)"
        raise BadRequest(expected=expected, got=fields.json_options, at="$.json_options", hint=f"{error}.") from None
    return asked.over(JsonOptions(any_order=config.any_order or None))


def to_grammar(fields: GrammarFields, config: ServeConfig) -> Spec | None:
    """The one constraint asked for, in whatever dialect, with the request's options for JSON."""
    options, spec = to_json_options(fields, config), _constraint(fields)
    return None if spec is None else options.applied(spec)


def _constraint(fields: GrammarFields) -> Spec | None:
    """Two at once are refused, none is None."""
    found = [
        (name, spec)
        for name, spec in (
            ("response_format", _response_format(fields.response_format)),
            ("structured_outputs", _structured_outputs(fields.structured_outputs)),
            ("guided_json", _json_schema(fields.guided_json, "guided_json")),
            ("guided_regex", Regex(pattern=fields.guided_regex) if fields.guided_regex else None),
            ("guided_choice", _choice(fields.guided_choice, "guided_choice")),
            ("guided_grammar", Lark(grammar=fields.guided_grammar) if fields.guided_grammar else None),
            ("regex", Regex(pattern=fields.regex) if fields.regex else None),
            ("ebnf", Lark(grammar=fields.ebnf) if fields.ebnf else None),
            ("grammar", Lark(grammar=fields.grammar) if fields.grammar else None),
            ("json_schema", _json_schema(fields.json_schema, "json_schema")),
        )
        if spec is not None
    ]
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise BadRequest(expected="one constraint", got=names, at=f"$.{found[1][0]}", hint="Keep one of them.")
    return found[0][1] if found else None


def _response_format(value: dict[str, Any] | None) -> Spec | None:
    if value is None:
        return None
    kind = value.get("type")
    match kind:
        case "text" | None:
            return None
        case "json_object":
            return JsonObject()
        case "json_schema":
            return _openai_schema(value)
        case "regex":
            return Regex(pattern=_text(value.get("pattern") or value.get("regex"), "response_format.pattern"))
        case "grammar" | "lark" | "ebnf":
            return Lark(grammar=_text(value.get("grammar"), "response_format.grammar"))
        case "structural_tag":
            return structural_tag(value, "$.response_format")
    wanted = "text, json_object, json_schema, regex, grammar or structural_tag"
    raise BadRequest(expected=wanted, got=kind, at="$.response_format.type")


def _openai_schema(value: dict[str, Any]) -> Spec:
    inner = value.get("json_schema", value)
    if not isinstance(inner, dict) or "schema" not in inner:
        raise BadRequest(expected="a schema", got="none", at="$.response_format.json_schema.schema")
    spec = _json_schema(inner["schema"], "response_format.json_schema.schema")
    if spec is None:
        raise BadRequest(expected="a JSON Schema", got=None, at="$.response_format.json_schema.schema")
    return spec


def _structured_outputs(value: dict[str, Any] | None) -> Spec | None:
    """vLLM's field: {json | regex | choice | grammar | json_object | structural_tag}."""
    present = {key: inner for key, inner in (value or {}).items() if inner not in (None, False)}
    for key, inner in present.items():
        at = f"structured_outputs.{key}"
        match key:
            case "json":
                return _json_schema(inner, at)
            case "json_object":
                return JsonObject()
            case "regex":
                return Regex(pattern=_text(inner, at))
            case "choice":
                return _choice(inner, at)
            case "grammar":
                return Lark(grammar=_text(inner, at))
            case "structural_tag":
                return structural_tag(inner, f"$.{at}")
    return None


def _json_schema(value: Any, at: str) -> JsonSchema | None:
    """A schema as JSON or as text; its keys keep their order, for that is the order of the output."""
    if value is None:
        return None
    if isinstance(value, str):
        return JsonSchema(schema=value)
    if isinstance(value, dict | bool):
        return JsonSchema(schema=json.dumps(value, ensure_ascii=False))
    raise BadRequest(expected="a JSON Schema, as an object or as its text", got=value, at=f"$.{at}")


def _choice(value: Any, at: str) -> Choice | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise BadRequest(expected="a list of strings, not empty", got=value, at=f"$.{at}")
    return Choice(choices=tuple(value))


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(expected="text", got=value, at=f"$.{at}")
    return value


def _ids(ids: list[int] | None, name: str, vocabulary_size: int) -> list[int]:
    for index, token in enumerate(ids or []):
        if not 0 <= token < vocabulary_size:
            raise BadRequest(expected=f"a token id under {vocabulary_size}", got=token, at=f"$.{name}[{index}]")
    return ids or []
