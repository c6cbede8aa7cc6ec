"""Every family equals transformers in float32: logits within 1e-4 at every position, and the same greedy tokens.

Checkpoints are tiny, random, and written by transformers itself. Our side runs in chunks, rows mixed, over scattered
pages; transformers computes each finished text in one pass. Where its arg-max at each position is our next token, its
greedy generation is ours.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ramet.runtime.models.registry import build_model
from ramet.runtime.weights.huggingface import HuggingFaceSource

NUM_PROMPTS, NUM_NEW = 20, 64

BASE: dict[str, Any] = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, pad_token_id=None, bos_token_id=None,
    eos_token_id=None,
)  # fmt: skip
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=5000.0)
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32,
    rope_theta=5000.0,
)  # fmt: skip

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-mqa-tied": ("Llama", dict(num_key_value_heads=1, tie_word_embeddings=True)),
    "llama-mha-biased": ("Llama", dict(num_key_value_heads=4, attention_bias=True, mlp_bias=True)),
    "llama-wide-heads": ("Llama", dict(head_dim=16)),
    "llama-linear": ("Llama", dict(rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=5000.0))),
    "llama-dynamic": ("Llama", dict(rope_parameters=dict(rope_type="dynamic", factor=3.0, rope_theta=5000.0))),
    "llama-llama3": ("Llama", dict(rope_parameters=LLAMA3)),
    "llama-yarn": ("Llama", dict(rope_parameters=YARN)),
    "mistral-window": ("Mistral", dict(sliding_window=7)),
    "qwen2": ("Qwen2", {}),
    "qwen2-windows": ("Qwen2", dict(use_sliding_window=True, sliding_window=9, max_window_layers=1)),
    "qwen3": ("Qwen3", dict(head_dim=16)),
    "gemma3": (
        "Gemma3Text",
        dict(head_dim=16, sliding_window=8, query_pre_attn_scalar=24, final_logit_softcapping=5.0,
             layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    ),
    "gemma3-stretched": (
        "Gemma3Text",
        dict(head_dim=8, sliding_window=6, rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=9000.0),
            sliding_attention=dict(rope_type="default", rope_theta=300.0))),
    ),
}  # fmt: skip


@pytest.fixture(params=CASES, scope="module")
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' model with random weights, norms and biases included, and the folder it is saved in."""
    family, options = CASES[request.param]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**BASE, **options})
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter += 0.2 * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return model, folder


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 40, (NUM_PROMPTS,), generator=generator).tolist()
    return [torch.randint(0, 97, (length,), generator=generator).tolist() for length in lengths]


def test_logits_and_greedy_tokens_equal_transformers(reference: tuple[Any, Path], greedy: Any) -> None:
    theirs, folder = reference
    source = HuggingFaceSource(folder)
    model = build_model(source.config, source, dtype=torch.float32)
    outputs, ours = greedy(model, prompts(), NUM_NEW)
    for prompt, output, logits in zip(prompts(), outputs, ours, strict=True):
        with torch.no_grad():
            expected = theirs(torch.tensor([[*prompt, *output[:-1]]])).logits[0]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        assert expected[len(prompt) - 1 :].argmax(-1).tolist() == output


def test_rotary_frequencies_equal_transformers_beyond_the_original_context() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from ramet.runtime.models.config import config_from_huggingface
    from ramet.runtime.models.rope import rope_frequencies

    dynamic = dict(rope_type="dynamic", factor=2.5, rope_theta=5000.0)
    for parameters in (YARN, LLAMA3, dynamic, {**YARN, "truncate": False, "beta_fast": 8.0}, {**YARN, "mscale": 0.7,
                       "mscale_all_dim": 1.3}, {**YARN, "attention_factor": 1.5}):  # fmt: skip
        theirs = transformers.LlamaConfig(**{**BASE, "rope_parameters": dict(parameters)})
        ours = config_from_huggingface(theirs.to_dict())
        expected, expected_scale = ROPE_INIT_FUNCTIONS[str(parameters["rope_type"])](theirs, "cpu", seq_len=1000)
        found, scale = rope_frequencies(ours.rope, ours.head_dim, 1000)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        assert scale == pytest.approx(expected_scale)
