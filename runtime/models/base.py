"""What a model is to the rest of the runtime: numbers and one forward; and what it needs of whoever has its weights."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ramet.kernels.kv_quantize import SCALE_DTYPE
from ramet.kernels.memory import zeros_on_huge_pages
from ramet.runtime.models.batch import KVPool, StepBatch
from ramet.runtime.models.config import ModelConfig


class Model(Protocol):
    """A decoder-only transformer with its weights."""

    @property
    def config(self) -> ModelConfig: ...

    def forward(self, batch: StepBatch, kv: KVPool) -> Tensor:
        """Write keys and values of batch.tokens to batch.slots of `kv`, attend over the pages of each row.

        Returns float32 [O, V]: logits of the tokens in batch.output_rows.
        """
        ...


class QuantizedTensor(NamedTuple):
    """A matrix in ggml blocks, as its file has it; rows are in Hugging Face's order."""

    blocks: Tensor
    """uint8 [rows, bytes per row]  contiguous"""
    type: str
    """Name of the ggml type: "Q4_1", "Q8_0", ..."""
    shape: tuple[int, int]
    """[rows, columns] of the matrix that the blocks stand for"""


class WeightReader(Protocol):
    """Tensors by their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`), whatever file they lie in."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor as numbers. Raises WeightsCorrupt where it is missing."""
        ...

    def read_raw(self, name: str) -> QuantizedTensor | Tensor:
        """The tensor as the file has it: ggml blocks, or numbers in the file's own dtype."""
        ...


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """What one token takes in a pool of this dtype: keys and values of all layers, and the scales of int8."""
    scales = 2 * config.num_layers * config.num_kv_heads * SCALE_DTYPE.itemsize if dtype == torch.int8 else 0
    return config.kv_bytes_per_token(dtype.itemsize) + scales


def make_kv_pool(
    config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device | str
) -> KVPool:
    """An empty pool: one allocation, [2, L, N, S, G, D], which the system backs with memory as pages are first written.

    Zeros, not garbage: a masked key still meets a weight of 0, and 0 * NaN is NaN.
    """
    shape = (2, config.num_layers, num_pages, page_size, config.num_kv_heads, config.head_dim)
    on_cpu = torch.device(device).type == "cpu"
    memory = zeros_on_huge_pages(shape, dtype) if on_cpu else torch.zeros(shape, dtype=dtype, device=device)
    keys, values = memory.unbind(0)
    if dtype != torch.int8:
        return KVPool(keys=list(keys.unbind(0)), values=list(values.unbind(0)))
    key_scales, value_scales = torch.zeros(shape[:-1], dtype=SCALE_DTYPE, device=device).unbind(0)
    return KVPool(
        keys=list(keys.unbind(0)),
        values=list(values.unbind(0)),
        key_scales=list(key_scales.unbind(0)),
        value_scales=list(value_scales.unbind(0)),
    )
