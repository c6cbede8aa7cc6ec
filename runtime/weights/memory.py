"""Will it fit? Arithmetic before anything is read: a load that can't work fails at once, with numbers.

weights      parameters * bytes of the dtype (a tied output matrix counts once)
KV pages     tokens * 2 * layers * key heads * head size * bytes of the pages' dtype, and the scales of int8 pages
activations  the widest step: its rows of the feed-forward and the logits of the rows that sample
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from ramet.runtime.errors import NotEnoughMemory
from ramet.runtime.models.base import kv_bytes_per_token
from ramet.runtime.models.config import ModelConfig

_SAMPLED_ROWS = 64
"""Rows of logits that a step is expected to make, for the estimate."""

_LEAST_KV_TOKENS = 256
"""Fewer than this is not worth serving: the hint then names the dtype instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a model will take, in bytes."""

    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    free_bytes: int
    kv_tokens: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes


def plan_memory(
    config: ModelConfig,
    num_params_bytes: int,
    kv_tokens: int,
    dtype: torch.dtype,
    free_bytes: int,
    *,
    max_step_tokens: int = 2048,
    kv_dtype: torch.dtype | None = None,
) -> MemoryPlan:
    """Weigh `num_params_bytes` of weights, `kv_tokens` of KV and a step against `free_bytes`.

    kv_dtype  of the pages; None: `dtype`

    Raises NotEnoughMemory with the numbers and the flag that would fit.
    """
    plan = MemoryPlan(
        weight_bytes=num_params_bytes,
        kv_bytes=kv_tokens * kv_bytes_per_token(config, kv_dtype or dtype),
        activation_bytes=_activation_bytes(config, dtype, max_step_tokens),
        free_bytes=free_bytes,
        kv_tokens=kv_tokens,
    )
    if plan.total_bytes > free_bytes:
        raise NotEnoughMemory(_explain(plan, config, dtype, kv_dtype or dtype))
    return plan


def free_memory_bytes(device: torch.device | str = "cpu") -> int:
    """What this device can still hold: for CUDA as its driver says, else what Linux calls available."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: the system decides
        return 1 << 62
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    return min(int(available.split()[1]) * 1024, _container_limit())


def _container_limit() -> int:
    """What a control group leaves of its limit; without one, no limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # no control group, or its limit is the word "max"
        return 1 << 62


def _activation_bytes(config: ModelConfig, dtype: torch.dtype, step_tokens: int) -> int:
    widest = 3 * config.intermediate_size + 4 * config.hidden_size
    return step_tokens * widest * dtype.itemsize + _SAMPLED_ROWS * config.vocab_size * 4


def _explain(plan: MemoryPlan, config: ModelConfig, dtype: torch.dtype, kv_dtype: torch.dtype) -> str:
    numbers = (
        f"weights {_size(plan.weight_bytes)} + KV of {plan.kv_tokens:,} tokens {_size(plan.kv_bytes)} + activations "
        f"{_size(plan.activation_bytes)} = {_size(plan.total_bytes)}, but {_size(plan.free_bytes)} are free."
    )
    return f"{numbers} {_what_fits(plan, config, dtype, kv_dtype)}"


def _what_fits(plan: MemoryPlan, config: ModelConfig, dtype: torch.dtype, kv_dtype: torch.dtype) -> str:
    left = plan.free_bytes - plan.weight_bytes - plan.activation_bytes
    fitting = left // kv_bytes_per_token(config, kv_dtype) // 16 * 16
    if fitting >= _LEAST_KV_TOKENS:
        shorter = f" and --context-length {fitting}" if fitting < config.context_length else ""
        return f"--kv-tokens {fitting}{shorter} would fit."
    halved = plan.weight_bytes // 2 + _LEAST_KV_TOKENS * config.kv_bytes_per_token(2) + plan.activation_bytes // 2
    if dtype == torch.float32 and halved <= plan.free_bytes:
        return "--dtype bfloat16 with a smaller --kv-tokens would fit."
    return "No setting makes it fit: choose a smaller model, or free memory."


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
