"""What a model is, in numbers: read from a Hugging Face `config.json` or from GGUF metadata. Knows no tensors.

Both spellings end in the same frozen values, so that a model file never asks where its weights came from. Whatever
changes the numbers and is not understood raises UnsupportedModel: a model that runs wrong is worse than none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from ramet.runtime.errors import UnsupportedModel, WeightsCorrupt

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
Activation = Literal["silu", "gelu_tanh"]
ModelType = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3_text"]
MODEL_TYPES: tuple[ModelType, ...] = get_args(ModelType)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary positions: a base and, where a family stretches its context, how."""

    theta: float
    """Base of the wavelengths."""
    kind: RopeKind = "default"
    factor: float = 1.0
    """How far the context is stretched."""
    original_context_length: int = 0
    """Context before stretching (llama3, yarn; for dynamic, the length up to which nothing changes)."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above original_context_length / this are stretched in full, ..."""
    high_freq_factor: float = 4.0
    """... those below original_context_length / this not at all."""
    attention_factor: float | None = None
    """yarn: scales cosines and sines; None: derived from factor and the mscales."""
    mscale: float = 0.0
    """yarn: weighs log(factor) in the numerator of the derived attention_factor; 0: absent."""
    mscale_all_dim: float = 0.0
    """The same in the denominator."""
    beta_fast: float = 32.0
    """yarn: dimensions that turn more often than this over the original context are not stretched, ..."""
    beta_slow: float = 1.0
    """... those that turn less often than this are stretched in full."""
    truncate: bool = True
    """yarn: round the borders of the ramp to whole dimensions."""
    divisors: tuple[float, ...] = ()
    """Per frequency, what to divide it by (GGUF stores llama3's stretching so); empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer in numbers."""

    model_type: ModelType
    """Names the file under models/ that builds it."""
    vocab_size: int
    """Rows of the embedding: the width V of the logits, at least the tokenizer's size."""
    hidden_size: int
    intermediate_size: int
    """Width between the MLP's two halves."""
    num_layers: int
    num_heads: int
    """Query heads H."""
    num_kv_heads: int
    """Key/value heads G; H is a multiple of it."""
    head_dim: int
    """Size D of one head."""
    context_length: int
    """Positions that the model was made for."""
    rms_norm_eps: float
    rope: RopeConfig
    """Of every layer, or of the global ones where `local_rope` is given."""
    local_rope: RopeConfig | None = None
    """Of layers with a window (Gemma 3)."""
    windows: tuple[int | None, ...] = ()
    """Per layer, how many keys a query sees, its own included; None: all. Empty: all, in every layer."""
    attention_scale: float | None = None
    """Scores are multiplied by this; None: head_dim ** -0.5."""
    attention_softcap: float | None = None
    """Scores are bent to c * tanh(score / c)."""
    final_softcap: float | None = None
    """Logits are bent to c * tanh(logit / c)."""
    activation: Activation = "silu"
    tie_word_embeddings: bool = False
    """The output matrix is the embedding."""

    @property
    def scale(self) -> float:
        """What attention scores are multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def with_context_length(self, context_length: int | None) -> "ModelConfig":
        """The same model for another number of positions; None: as it is."""
        return self if context_length is None else replace(self, context_length=context_length)

    def window(self, layer: int) -> int | None:
        """Keys that a query of this layer sees, its own included; None: all of them."""
        return self.windows[layer] if self.windows else None

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Key and value of one token in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value


def config_from_huggingface(raw: Mapping[str, Any]) -> ModelConfig:
    """From a parsed `config.json`. A multimodal Gemma 3 is read as its text part."""
    if raw.get("model_type") == "gemma3" and isinstance(raw.get("text_config"), dict):
        raw = {**raw["text_config"], "model_type": "gemma3_text"}
    fields = _Fields(raw, where="config.json")
    model_type = _known_type(raw.get("model_type"))
    _refuse_unknown_switches(raw)
    num_layers, num_heads = fields.integer("num_hidden_layers"), fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", 256 if model_type == "gemma3_text" else hidden_size // num_heads)
    context_length = fields.integer("max_position_embeddings", 2048)
    rope, local_rope = _ropes(raw, context_length, is_gemma=model_type == "gemma3_text")
    config = ModelConfig(
        model_type=model_type,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        context_length=context_length,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        local_rope=local_rope,
        windows=_windows(raw, model_type, num_layers),
        attention_scale=_gemma_scale(raw, model_type),
        attention_softcap=raw.get("attn_logit_softcapping"),
        final_softcap=raw.get("final_logit_softcapping"),
        activation=_activation(raw.get("hidden_activation") or raw.get("hidden_act") or _default_act(model_type)),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", model_type == "gemma3_text")),
    )
    return _checked(config, "config.json")


def _known_type(name: Any) -> ModelType:
    if name not in MODEL_TYPES:
        raise UnsupportedModel(
            f"config.json says model_type {name!r}. Ramet runs {', '.join(MODEL_TYPES)}: choose one of these."
        )
    return cast(ModelType, name)


def _refuse_unknown_switches(raw: Mapping[str, Any]) -> None:
    if raw.get("use_bidirectional_attention"):
        raise UnsupportedModel(
            "config.json asks for bidirectional attention; Ramet generates, which needs causal attention."
        )
    if raw.get("quantization_config"):
        method = dict(raw["quantization_config"]).get("quant_method")
        raise UnsupportedModel(
            f"config.json says quantisation {method!r}. Use the unquantised model or a GGUF file of it."
        )
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel("config.json asks for partial rotary embeddings, which no supported family has.")


def _default_act(model_type: ModelType) -> str:
    return "gelu_pytorch_tanh" if model_type == "gemma3_text" else "silu"


def _activation(name: object) -> Activation:
    match name:
        case "silu" | "swish":
            return "silu"
        case "gelu_pytorch_tanh" | "gelu_new":
            return "gelu_tanh"
    raise UnsupportedModel(f"activation {name!r} is not known; silu and gelu_pytorch_tanh are.")


def _gemma_scale(raw: Mapping[str, Any], model_type: ModelType) -> float | None:
    return float(raw.get("query_pre_attn_scalar", 256)) ** -0.5 if model_type == "gemma3_text" else None


def _windows(raw: Mapping[str, Any], model_type: ModelType, num_layers: int) -> tuple[int | None, ...]:
    """Per layer; empty where no layer has a window."""
    window = raw.get("sliding_window")
    if model_type == "gemma3_text":
        window = raw.get("sliding_window", 4096)
    elif model_type in ("qwen2", "qwen3") and not raw.get("use_sliding_window", False):
        window = None
    if window is None or model_type == "llama":
        return ()
    return tuple(int(window) if slides else None for slides in _sliding_layers(raw, model_type, num_layers))


def _sliding_layers(raw: Mapping[str, Any], model_type: ModelType, num_layers: int) -> list[bool]:
    kinds = raw.get("layer_types")
    if kinds is not None and model_type != "mistral":  # mistral windows all its layers, whatever the list says
        unknown = set(kinds) - {"sliding_attention", "full_attention"}
        if unknown or len(kinds) != num_layers:
            raise UnsupportedModel(f"layer_types has {len(kinds)} entries for {num_layers} layers, unknown: {unknown}.")
        return [kind == "sliding_attention" for kind in kinds]
    if model_type == "gemma3_text":
        pattern = int(raw.get("sliding_window_pattern", raw.get("_sliding_window_pattern", 6)))
        return [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    first = int(raw.get("max_window_layers", 28)) if model_type in ("qwen2", "qwen3") else 0
    return [layer >= first for layer in range(num_layers)]


def _ropes(raw: Mapping[str, Any], context_length: int, *, is_gemma: bool) -> tuple[RopeConfig, RopeConfig | None]:
    """Global and local rotary settings, from `rope_parameters` (new) or `rope_theta` + `rope_scaling` (old)."""
    parameters = dict(raw.get("rope_parameters") or {})
    old = {"rope_theta": raw.get("rope_theta"), **(raw.get("rope_scaling") or {})}
    if not is_gemma:
        return _rope({**_given(old), **parameters}, context_length, 10_000.0), None
    full = {**_given(old), **(parameters.get("full_attention") or {})}
    local = {"rope_theta": raw.get("rope_local_base_freq"), **(parameters.get("sliding_attention") or {})}
    return _rope(full, context_length, 1_000_000.0), _rope(_given(local), context_length, 10_000.0)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _rope(raw: Mapping[str, Any], context_length: int, default_theta: float) -> RopeConfig:
    kind = raw.get("rope_type") or raw.get("type") or "default"
    if kind not in get_args(RopeKind):
        raise UnsupportedModel(f"rope type {kind!r} is not known; {', '.join(get_args(RopeKind))} are.")
    original = raw.get("original_max_position_embeddings") or context_length
    if kind == "dynamic":
        original = context_length
    return RopeConfig(
        theta=float(raw.get("rope_theta", default_theta)),
        kind=cast(RopeKind, kind),
        factor=float(raw.get("factor") or context_length / original),
        original_context_length=int(original),
        low_freq_factor=float(raw.get("low_freq_factor", 1.0)),
        high_freq_factor=float(raw.get("high_freq_factor", 4.0)),
        attention_factor=raw.get("attention_factor"),
        mscale=float(raw.get("mscale") or 0.0),
        mscale_all_dim=float(raw.get("mscale_all_dim") or 0.0),
        beta_fast=float(raw.get("beta_fast") or 32.0),
        beta_slow=float(raw.get("beta_slow") or 1.0),
        truncate=bool(raw.get("truncate", True)),
    )


_GGUF_TYPES: dict[str, ModelType] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}


def config_from_gguf(
    metadata: Mapping[str, Any], *, vocab_size: int, has_output: bool, rope_divisors: Sequence[float] = ()
) -> ModelConfig:
    """From GGUF metadata and what only the tensors tell: the embedding's rows, whether there is an output matrix of its
    own, and the rotary divisors of Llama 3 files."""
    architecture = metadata.get("general.architecture")
    if architecture not in _GGUF_TYPES:
        raise UnsupportedModel(
            f"the GGUF file is a {architecture!r}. Ramet runs {', '.join(_GGUF_TYPES)}: choose one of these."
        )
    fields = _Fields(metadata, where="the GGUF metadata", prefix=f"{architecture}.")
    if fields.integer("expert_count", 0):
        raise UnsupportedModel("the GGUF file is a mixture of experts, which Ramet does not run yet.")
    model_type = _GGUF_TYPES[str(architecture)]
    num_layers, num_heads = fields.integer("block_count"), fields.integer("attention.head_count")
    hidden_size = fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel("keys and values of different head size are not supported.")
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModel("partial rotary embeddings are not supported.")
    is_gemma = model_type == "gemma3_text"
    rope = _gguf_rope(fields, 1_000_000.0 if is_gemma else 10_000.0, tuple(rope_divisors))
    config = ModelConfig(
        model_type=model_type,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        context_length=fields.integer("context_length"),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-6),
        rope=rope,
        local_rope=RopeConfig(theta=fields.number("rope.freq_base_swa", 10_000.0)) if is_gemma else None,
        windows=_gguf_windows(fields, num_layers, is_gemma=is_gemma),
        # Gemma 3's 27B model, known by its 62 layers, scales by the width per head; the others by the head size.
        attention_scale=(hidden_size // num_heads) ** -0.5 if is_gemma and num_layers == 62 else None,
        attention_softcap=fields.optional_number("attn_logit_softcapping"),
        final_softcap=fields.optional_number("final_logit_softcapping"),
        activation="gelu_tanh" if is_gemma else "silu",
        tie_word_embeddings=not has_output,
    )
    return _checked(config, "the GGUF metadata")


def _gguf_windows(fields: "_Fields", num_layers: int, *, is_gemma: bool) -> tuple[int | None, ...]:
    """The pattern is "every n-th layer sees all", or a list that says per layer whether it has the window."""
    window = fields.integer("attention.sliding_window", 0)
    if not window:
        return ()
    listed = fields.raw.get(fields.prefix + "attention.sliding_window_pattern")
    if isinstance(listed, list):
        return tuple(window if slides else None for slides in listed)
    pattern = fields.integer("attention.sliding_window_pattern", 6 if is_gemma else 0)
    return tuple(None if pattern and (layer + 1) % pattern == 0 else window for layer in range(num_layers))


def _gguf_rope(fields: "_Fields", default_theta: float, divisors: tuple[float, ...]) -> RopeConfig:
    kind = str(fields.raw.get(fields.prefix + "rope.scaling.type", "none"))
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"rope scaling {kind!r} of the GGUF file is not known; none, linear and yarn are.")
    return RopeConfig(
        theta=fields.number("rope.freq_base", default_theta),
        kind=cast(RopeKind, "default" if kind == "none" else kind),
        factor=fields.number("rope.scaling.factor", 1.0),
        original_context_length=fields.integer(
            "rope.scaling.original_context_length", fields.integer("context_length")
        ),
        attention_factor=_gguf_attention_factor(fields, kind),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        divisors=divisors,
    )


def _gguf_attention_factor(fields: "_Fields", kind: str) -> float | None:
    """GGUF stores what multiplies YaRN's own factor; None leaves that as it is."""
    given = fields.optional_number("rope.scaling.attn_factor")
    if given is None or kind != "yarn":
        return None
    return given * (0.1 * math.log(fields.number("rope.scaling.factor", 1.0)) + 1.0)


def _checked(config: ModelConfig, where: str) -> ModelConfig:
    """Sizes that don't fit together would only show as a shape error deep inside a forward."""
    if min(config.vocab_size, config.hidden_size, config.num_layers, config.head_dim, config.num_kv_heads) < 1:
        raise WeightsCorrupt(f"{where} has a size below 1: {config}.")
    if config.num_heads % config.num_kv_heads:
        raise WeightsCorrupt(
            f"{where} has {config.num_heads} query heads and {config.num_kv_heads} key heads; "
            "the first must be a multiple of the second."
        )
    if config.windows and len(config.windows) != config.num_layers:
        raise WeightsCorrupt(f"{where} lists the windows of {len(config.windows)} layers, but has {config.num_layers}.")
    if config.head_dim % 2:
        raise UnsupportedModel(f"{where} has head size {config.head_dim}; rotary positions need an even one.")
    return config


class _Fields:
    """Reads numbers from a mapping, and says which one is missing or of the wrong kind."""

    def __init__(self, raw: Mapping[str, Any], *, where: str, prefix: str = "") -> None:
        self.raw, self.where, self.prefix = raw, where, prefix

    def integer(self, name: str, default: int | None = None) -> int:
        return self._read(name, default, lambda value: isinstance(value, int) and not isinstance(value, bool))  # type: ignore[no-any-return]

    def number(self, name: str, default: float | None = None) -> float:
        return float(self._read(name, default, lambda value: isinstance(value, int | float)))

    def optional_number(self, name: str) -> float | None:
        return None if self.raw.get(self.prefix + name) is None else self.number(name)

    def _read(self, name: str, default: object, fits: Callable[[object], bool]) -> Any:
        value = self.raw.get(self.prefix + name)
        if value is None:
            value = default
        if value is None or not fits(value):
            raise WeightsCorrupt(f"{self.where} has {self.prefix + name} = {value!r}, expected a number.")
        return value
