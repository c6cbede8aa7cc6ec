"""Old and new spellings of config.json read alike, and as transformers understands them."""

from typing import Any

import pytest
import transformers

from ramet.runtime.errors import UnsupportedModel, WeightsCorrupt
from ramet.runtime.models.config import ModelConfig, config_from_gguf, config_from_huggingface

# The numbers are those of the models' published config.json files, in the spelling of their day.
LLAMA_31_8B: dict[str, Any] = dict(
    model_type="llama", attention_bias=False, bos_token_id=128000, eos_token_id=[128001, 128008, 128009],
    hidden_act="silu", hidden_size=4096, intermediate_size=14336, max_position_embeddings=131072, mlp_bias=False,
    num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=500000.0,
    rope_scaling=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192,
                      rope_type="llama3"),
    tie_word_embeddings=False, vocab_size=128256,
)  # fmt: skip
MISTRAL_7B: dict[str, Any] = dict(
    model_type="mistral", hidden_act="silu", hidden_size=4096, intermediate_size=14336, max_position_embeddings=32768,
    num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=10000.0,
    sliding_window=4096, tie_word_embeddings=False, vocab_size=32000,
)  # fmt: skip
QWEN25_7B_LONG: dict[str, Any] = dict(
    model_type="qwen2", hidden_act="silu", hidden_size=3584, intermediate_size=18944, max_position_embeddings=32768,
    max_window_layers=28, num_attention_heads=28, num_hidden_layers=28, num_key_value_heads=4, rms_norm_eps=1e-6,
    rope_theta=1000000.0, sliding_window=131072, tie_word_embeddings=False, use_sliding_window=False, vocab_size=152064,
    rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32768),
)  # fmt: skip
QWEN3_06B: dict[str, Any] = dict(
    model_type="qwen3", attention_bias=False, head_dim=128, hidden_act="silu", hidden_size=1024, intermediate_size=3072,
    max_position_embeddings=40960, max_window_layers=28, num_attention_heads=16, num_hidden_layers=28,
    num_key_value_heads=8, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000, sliding_window=None,
    tie_word_embeddings=True, use_sliding_window=False, vocab_size=151936,
)  # fmt: skip
GEMMA3_4B_TEXT: dict[str, Any] = dict(
    model_type="gemma3_text", attention_bias=False, attn_logit_softcapping=None, final_logit_softcapping=None,
    head_dim=256, hidden_activation="gelu_pytorch_tanh", hidden_size=2560, intermediate_size=10240,
    max_position_embeddings=131072, num_attention_heads=8, num_hidden_layers=34, num_key_value_heads=4,
    query_pre_attn_scalar=256, rms_norm_eps=1e-6, rope_local_base_freq=10000.0, rope_theta=1000000.0,
    rope_scaling=dict(factor=8.0, rope_type="linear"), sliding_window=1024, sliding_window_pattern=6, vocab_size=262208,
)  # fmt: skip
SMOLLM2: dict[str, Any] = dict(
    model_type="llama", hidden_act="silu", hidden_size=576, intermediate_size=1536, max_position_embeddings=8192,
    num_attention_heads=9, num_hidden_layers=30, num_key_value_heads=3, rms_norm_eps=1e-5, rope_scaling=None,
    rope_theta=100000, tie_word_embeddings=True, vocab_size=49152, rope_interleaved=False,
)  # fmt: skip
ALL = dict(
    llama31=LLAMA_31_8B,
    mistral=MISTRAL_7B,
    qwen25=QWEN25_7B_LONG,
    qwen3=QWEN3_06B,
    gemma3=GEMMA3_4B_TEXT,
    smollm2=SMOLLM2,
)


@pytest.fixture(params=ALL)
def raw(request: pytest.FixtureRequest) -> dict[str, Any]:
    return ALL[request.param]


def test_new_spelling_reads_like_the_old_one(raw: dict[str, Any]) -> None:
    """transformers rewrites `rope_theta` and `rope_scaling` to `rope_parameters`, and lists the layers' kinds."""
    rewritten = transformers.AutoConfig.for_model(**raw).to_dict()
    assert "rope_parameters" in rewritten
    assert config_from_huggingface(rewritten) == config_from_huggingface(raw)


def test_numbers_are_taken_over(raw: dict[str, Any]) -> None:
    config = config_from_huggingface(raw)
    assert config.num_layers == raw["num_hidden_layers"] and config.vocab_size == raw["vocab_size"]
    assert config.head_dim == raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
    assert config.rope.theta == raw["rope_theta"] and config.context_length == raw["max_position_embeddings"]


def test_families_differ_where_they_should() -> None:
    llama, mistral, qwen, gemma = map(
        config_from_huggingface, (LLAMA_31_8B, MISTRAL_7B, QWEN25_7B_LONG, GEMMA3_4B_TEXT)
    )
    assert llama.rope.kind == "llama3" and llama.rope.original_context_length == 8192 and not llama.windows
    assert set(mistral.windows) == {4096} and len(mistral.windows) == 32 and mistral.window(5) == 4096
    assert qwen.rope.kind == "yarn" and qwen.rope.factor == 4.0 and not qwen.windows
    assert gemma.windows[:6] == (1024, 1024, 1024, 1024, 1024, None) and gemma.windows.count(None) == 5
    assert gemma.local_rope is not None and gemma.local_rope.theta == 10000.0 and gemma.local_rope.kind == "default"
    assert gemma.tie_word_embeddings and gemma.activation == "gelu_tanh" and gemma.scale == 256**-0.5


def test_kv_bytes_and_other_context() -> None:
    config = config_from_huggingface(SMOLLM2)
    assert config.kv_bytes_per_token(2) == 2 * 30 * 3 * 64 * 2
    assert config.with_context_length(None) is config and config.with_context_length(99).context_length == 99


def test_multimodal_gemma_is_read_as_its_text_part() -> None:
    whole = {"model_type": "gemma3", "vision_config": {}, "text_config": GEMMA3_4B_TEXT}
    assert config_from_huggingface(whole) == config_from_huggingface(GEMMA3_4B_TEXT)


def gguf(**more: Any) -> ModelConfig:
    metadata = {
        "general.architecture": "gemma3", "gemma3.block_count": 62, "gemma3.context_length": 131072,
        "gemma3.embedding_length": 5376, "gemma3.feed_forward_length": 21504, "gemma3.attention.head_count": 32,
        "gemma3.attention.head_count_kv": 16, "gemma3.attention.key_length": 128, "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0, "gemma3.attention.sliding_window": 1024, **more,
    }  # fmt: skip
    return config_from_gguf(metadata, vocab_size=262208, has_output=False)


def test_gguf_of_the_largest_gemma_scales_by_width_per_head() -> None:
    config = gguf()
    assert config.scale == (5376 / 32) ** -0.5 and config.rope.factor == 8.0 and config.rope.kind == "linear"
    assert config.windows.count(None) == 10 and config.local_rope is not None and config.local_rope.factor == 1.0


def test_gguf_yarn_factors_multiply() -> None:
    scaling = {"gemma3.rope.scaling.type": "yarn", "gemma3.rope.scaling.attn_factor": 0.5}
    assert gguf(**scaling).rope.attention_factor == pytest.approx(0.5 * (0.1 * 2.0794415 + 1))
    assert gguf(**{"gemma3.rope.scaling.type": "yarn"}).rope.attention_factor is None


def test_gguf_may_list_its_windows() -> None:
    pattern = [True, False] * 31
    assert gguf(**{"gemma3.attention.sliding_window_pattern": pattern}).windows == (1024, None) * 31
    with pytest.raises(WeightsCorrupt, match="windows of 2 layers"):
        gguf(**{"gemma3.attention.sliding_window_pattern": [True, False]})


@pytest.mark.parametrize(
    ("key", "value"), [("rope.scaling.type", "longrope"), ("attention.value_length", 64), ("rope.dimension_count", 64)]
)
def test_gguf_of_what_is_not_supported(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel):
        gguf(**{f"gemma3.{key}": value})
