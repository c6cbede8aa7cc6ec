"""Which file builds which model_type. The only place that knows them all."""

from collections.abc import Callable

import torch

from ramet.runtime.models import gemma3_text, llama, qwen2, qwen3
from ramet.runtime.models.base import WeightReader
from ramet.runtime.models.config import ModelConfig, ModelType
from ramet.runtime.models.layers import Builder, Decoder, Placement

_BUILD: dict[ModelType, Callable[[Builder, int], Decoder]] = {
    "llama": llama.build,
    "mistral": llama.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
    "gemma3_text": gemma3_text.build,
}


def build_model(
    config: ModelConfig,
    weights: WeightReader,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    num_positions: int | None = None,
) -> Decoder:
    """Read the weights into a model for positions below `num_positions` (None: the model's own context length)."""
    builder = Builder(config, weights, Placement(dtype=dtype, device=torch.device(device)))
    return _BUILD[config.model_type](builder, num_positions or config.context_length)
