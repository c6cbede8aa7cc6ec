"""One step as tensors: what every model's forward and every attention kernel reads.

Letters: R rows (sequences in the step), T new tokens of all rows together, P pages in the longest table, L layers,
H query heads, G key/value heads, D head size, S page size, N pages in the pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ramet.runtime.types import RowGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The planned rows, laid end to end."""

    tokens: Tensor
    """int64 [T]  the ids to compute"""
    positions: Tensor
    """int64 [T]  rotary position of each (start + offset; start + depth in a token tree)"""
    query_offsets: Tensor
    """int32 [R + 1]  row r owns tokens [query_offsets[r], query_offsets[r + 1])"""
    context_lengths: Tensor
    """int32 [R]  keys of row r after this step: its start plus its new tokens"""
    page_tables: Tensor
    """int32 [R, P]  page of each S tokens of row r; entries past its length are 0 and never read"""
    slots: Tensor
    """int64 [T]  where each new token's key and value go: page * S + offset"""
    output_rows: Tensor
    """int64 [O]  the tokens (indices into T) whose logits are wanted"""
    groups: Sequence[RowGroup] = ()
    """Rows that share leading pages; attention may read those once"""
    tree_masks: dict[int, Tensor] | None = None
    """Row -> bool [n, n]: may new token i of the row see new token j of it; absent rows are causal"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPool:
    """The paged key/value memory of all layers."""

    keys: list[Tensor]
    """per layer  dtype  [N, S, G, D]"""
    values: list[Tensor]
    """per layer  dtype  [N, S, G, D]"""
    key_scales: list[Tensor] | None = None
    """per layer  float16  [N, S, G]  where dtype is int8 (kernels/kv_quantize.py): a rotated key is codes times this"""
    value_scales: list[Tensor] | None = None
    """the same for values"""

    @property
    def page_size(self) -> int:
        return self.keys[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.keys[0].dtype
