"""StepPlan -> StepBatch: ints to tensors, laid end to end, in numpy. Knows no model and no sampling.

    rows      [ row 0: a b c ][ row 1: d ][ row 2: e f ]      query_offsets 0 3 4 6
    tokens      a b c d e f                                   positions, slots: one each
    outputs         c d e f                                   output_rows 2 3 4 5; row 2 wants both of its own

No Python loop runs over tokens, except over the nodes of a token tree. Buffers are kept from step to step: a batch is
good until the next one is built.
"""

import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.runtime.models.batch import StepBatch
from ramet.runtime.types import PlannedRow, StepPlan

Ints = NDArray[np.int64]
Scalar = TypeVar("Scalar", np.int64, np.int32)


class RowOutputs(NamedTuple):
    """Where a row's logits lie in the O rows that the model returns."""

    start: int
    """The first of its output rows; they are those of consecutive tokens unless the row asks for a tree's."""
    sampled: range
    """Output rows to sample from, in order."""
    followed: Sequence[int]
    """Output row of each follower."""


class PlanTensors(NamedTuple):
    batch: StepBatch
    outputs: Sequence[RowOutputs]
    """One per planned row."""


class BatchBuilder:
    """Builds the tensors of one step after another, for one pool and one device."""

    def __init__(self, page_size: int, device: torch.device) -> None:
        self._page_size = page_size
        self._device = device
        self._token_buffer = _Buffer(np.int64)
        self._table_buffer = _Buffer(np.int32)

    def build(self, plan: StepPlan) -> PlanTensors:
        """The plan's rows as tensors. The plan has at least one row, and each row a token."""
        rows = plan.rows
        lengths = np.array([len(row.tokens) for row in rows], dtype=np.int64)
        starts = np.array([row.start for row in rows], dtype=np.int64)
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        T = int(offsets[-1])
        row_of_token = np.repeat(np.arange(len(rows)), lengths)
        indices = np.arange(T) - np.repeat(offsets[:-1] - starts, lengths)  # [T] place in the context
        tables = self._page_tables(rows)
        slots = tables[row_of_token, indices // self._page_size].astype(np.int64) * self._page_size
        slots += indices % self._page_size
        output_rows, outputs = _output_rows(rows, offsets)
        batch = StepBatch(
            tokens=self._tensor(self._tokens(rows, offsets)),
            positions=self._tensor(_positions(rows, indices, offsets)),
            query_offsets=self._tensor(offsets.astype(np.int32)),
            context_lengths=self._tensor((starts + lengths).astype(np.int32)),
            page_tables=self._tensor(tables),
            slots=self._tensor(slots),
            output_rows=self._tensor(output_rows),
            groups=plan.groups,
            tree_masks=self._tree_masks(rows),
        )
        return PlanTensors(batch, outputs)

    def _tokens(self, rows: Sequence[PlannedRow], offsets: Ints) -> Ints:
        tokens = self._token_buffer.take(int(offsets[-1]))
        for row, start in zip(rows, offsets.tolist(), strict=False):
            tokens[start : start + len(row.tokens)] = row.tokens
        return tokens

    def _page_tables(self, rows: Sequence[PlannedRow]) -> NDArray[np.int32]:
        """int32 [R, P]; entries past a row's pages are 0."""
        widths = [-(-(row.start + len(row.tokens)) // self._page_size) for row in rows]
        tables = self._table_buffer.take(len(rows), max(widths))
        for table, row, width in zip(tables, rows, widths, strict=True):
            table[:width] = row.pages[:width]
            table[width:] = 0
        return tables

    def _tree_masks(self, rows: Sequence[PlannedRow]) -> dict[int, Tensor] | None:
        masks = {i: tree_mask(row.parents) for i, row in enumerate(rows) if row.parents is not None}
        return {i: torch.from_numpy(mask).to(self._device) for i, mask in masks.items()} or None

    def _tensor(self, values: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(values).to(self._device)  # on a CPU, the same memory


class _Buffer(Generic[Scalar]):
    """Memory that grows and is used again."""

    def __init__(self, dtype: type[Scalar]) -> None:
        self._memory: NDArray[Scalar] = np.zeros(1024, dtype=dtype)

    def take(self, *shape: int) -> NDArray[Scalar]:
        """Whatever was in it last, as this shape."""
        size = math.prod(shape)
        if self._memory.size < size:
            self._memory = np.zeros(2 * size, dtype=self._memory.dtype)
        return self._memory[:size].reshape(shape)


def _positions(rows: Sequence[PlannedRow], indices: Ints, offsets: Ints) -> Ints:
    """A line's tokens stand where they lie; a tree's at their depth, so that siblings share a place."""
    if all(row.parents is None for row in rows):
        return indices
    positions = indices.copy()
    for row, start in zip(rows, offsets.tolist(), strict=False):
        if row.parents is not None:
            positions[start : start + len(row.tokens)] = row.start + tree_depths(row.parents)
    return positions


def _output_rows(rows: Sequence[PlannedRow], offsets: Ints) -> tuple[Ints, list[RowOutputs]]:
    """The tokens whose logits are wanted, each once, and where each row finds its own among them."""
    wanted: list[NDArray[np.int64]] = []
    outputs: list[RowOutputs] = []
    num_outputs = 0
    for row, end in zip(rows, offsets[1:].tolist(), strict=True):
        begin = end - len(row.tokens)
        if row.follower_at is None:
            count = max(row.num_sampled, row.num_logprobs)
            own = np.arange(end - count, end)
            followed: Sequence[int] = range(num_outputs + count - row.num_logprobs, num_outputs + count)
        else:
            sampled = np.arange(len(row.tokens) - row.num_sampled, len(row.tokens))
            places, inverse = np.unique(np.asarray([*row.follower_at, *sampled], dtype=np.int64), return_inverse=True)
            own, count = begin + places, len(places)
            followed = (num_outputs + inverse[: len(row.follower_at)]).tolist()
        # the sampled ones are the row's last tokens, so they are the last of its outputs in either form
        sampled_rows = range(num_outputs + count - row.num_sampled, num_outputs + count)
        outputs.append(RowOutputs(num_outputs, sampled_rows, followed))
        wanted.append(own)
        num_outputs += count
    return np.concatenate(wanted), outputs


def tree_depths(parents: Sequence[int]) -> Ints:
    """int64 [n]: 0 for the children of the prefix. A parent comes before its children."""
    depths = np.zeros(len(parents), dtype=np.int64)
    for i, parent in enumerate(parents):
        if parent >= 0:
            depths[i] = depths[parent] + 1
    return depths


def tree_mask(parents: Sequence[int]) -> NDArray[np.bool_]:
    """bool [n, n]: token i sees token j where j is i or an ancestor of i. A parent comes before its children."""
    mask = np.eye(len(parents), dtype=np.bool_)
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i] |= mask[parent]
    return mask
