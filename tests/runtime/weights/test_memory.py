"""Memory is planned before loading; too little names the numbers and the flag that fits."""

import re

import pytest
import torch

from ramet.runtime.errors import NotEnoughMemory
from ramet.runtime.models.base import kv_bytes_per_token, make_kv_pool
from ramet.runtime.models.config import ModelConfig, RopeConfig
from ramet.runtime.weights.memory import free_memory_bytes, plan_memory

CONFIG = ModelConfig(
    model_type="llama", vocab_size=1000, hidden_size=64, intermediate_size=128, num_layers=4, num_heads=4,
    num_kv_heads=2, head_dim=16, context_length=8192, rms_norm_eps=1e-5, rope=RopeConfig(theta=1e4),
)  # fmt: skip
MB = 10**6


def test_kv_bytes_are_layers_times_heads_times_two() -> None:
    plan = plan_memory(CONFIG, 10 * MB, 1000, torch.bfloat16, 1000 * MB)
    assert plan.kv_bytes == 1000 * 2 * 4 * 2 * 16 * 2
    assert plan.total_bytes == plan.weight_bytes + plan.kv_bytes + plan.activation_bytes


def test_int8_pages_take_a_byte_a_value_and_a_scale_a_head() -> None:
    plan = plan_memory(CONFIG, 10 * MB, 1000, torch.bfloat16, 1000 * MB, kv_dtype=torch.int8)
    assert plan.kv_bytes == 1000 * 2 * 4 * 2 * (16 + 2)
    pool = make_kv_pool(CONFIG, 10, 4, torch.int8, "cpu")
    tensors = (*pool.keys, *pool.values, *(pool.key_scales or ()), *(pool.value_scales or ()))
    assert sum(tensor.nbytes for tensor in tensors) == 40 * kv_bytes_per_token(CONFIG, torch.int8)


def test_named_flag_does_fit() -> None:
    with pytest.raises(
        NotEnoughMemory, match=r"weights 10 MB \+ KV of 1,000,000 tokens 512 MB .* 20 MB are free"
    ) as error:
        plan_memory(CONFIG, 10 * MB, 1_000_000, torch.bfloat16, 20 * MB)
    hint = re.search(r"--kv-tokens (\d+)", str(error.value))
    assert hint is not None and int(hint[1]) % 16 == 0
    plan_memory(CONFIG, 10 * MB, int(hint[1]), torch.bfloat16, 20 * MB)
    with pytest.raises(NotEnoughMemory):
        plan_memory(CONFIG, 10 * MB, int(hint[1]) + 32, torch.bfloat16, 20 * MB)


def test_context_length_is_named_where_the_pool_is_shorter() -> None:
    with pytest.raises(NotEnoughMemory, match="--context-length"):
        plan_memory(CONFIG, 10 * MB, 8192, torch.bfloat16, 15 * MB)


def test_float32_weights_that_would_fit_as_bfloat16() -> None:
    with pytest.raises(NotEnoughMemory, match="--dtype bfloat16"):
        plan_memory(CONFIG, 100 * MB, 512, torch.float32, 90 * MB)


def test_hopeless() -> None:
    with pytest.raises(NotEnoughMemory, match="smaller model"):
        plan_memory(CONFIG, 100 * MB, 512, torch.bfloat16, 10 * MB)


def test_free_memory_is_plausible() -> None:
    assert free_memory_bytes("cpu") > 50 * MB
