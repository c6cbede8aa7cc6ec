"""Decode steps as CUDA graphs: one launch for a whole step, in place of hundreds.

`GraphedModel` is a model around a model. A step with one new token in every row is padded to the next size that a graph
was made for, its tensors are copied to where the graph reads them, the graph is replayed, and the padding's logits are
left out. Any other step (prompts, drafts, trees, fork groups that share much) goes to the model as it is.

Padding rows have no keys (length 0), write nowhere (slot -1) and ask for logits that nobody reads. Page tables are as
wide as the widest context that a graph serves: the decode kernel cuts keys at fixed places, so what a row attends to
has the same bits in any size and width (torch's products promise that for one size only).

It does not know CUDA: what records and replays is handed in (`CudaRecorder`; in tests a recorder that runs the step
anew). Only that has been run so far: no GPU has replayed a graph of a whole model yet (docs/kernels.md). So a recording
that fails is told in one log line, and from there on the model runs as it is.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ramet.kernels.registry import use_backends
from ramet.kernels.tuning import Timer, measure_blocks
from ramet.runtime.models.base import Model
from ramet.runtime.models.batch import KVPool, StepBatch
from ramet.runtime.models.config import ModelConfig

log = logging.getLogger(__name__)

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of a graph."""


class Recorder(Protocol):
    """Records `step` once; the returned function does it again, on whatever the same memory holds by then."""

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]: ...


class CudaRecorder:
    """A CUDA graph; all graphs share one pool of memory, since only one replays at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            step()  # compiles kernels and fills workspaces, which a graph must not
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = step()
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    batch: StepBatch
    """Where the graph reads: tensors of a fixed place and size."""
    replay: Callable[[], Tensor]


class GraphedModel:
    """Implements `Model`. Graphs belong to one pool; another pool's steps are not graphed."""

    def __init__(
        self, model: Model, kv: KVPool, *, widest: int, sizes: Sequence[int] = SIZES, record: Recorder | None = None
    ) -> None:
        """`widest`: pages of the longest context. A size is recorded when a step first needs it."""
        self.model, self.kv, self.widest, self.sizes = model, kv, widest, sorted(sizes)
        self._record: Recorder = CudaRecorder() if record is None else record
        self._recorded: dict[int, _Recorded] = {}

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def weight_bytes(self) -> int:
        return self.model.weight_bytes()  # type: ignore[attr-defined, no-any-return]

    def forward(self, batch: StepBatch, kv: KVPool) -> Tensor:
        """float32 [O, V]; see `Model`."""
        size = self._size_of(batch) if kv is self.kv else None
        if size is None:
            return self.model.forward(batch, kv)
        recorded = self._recorded.get(size) or self._try_to_record(size, batch.tokens.device)
        if recorded is None:
            return self.model.forward(batch, kv)
        _fill(recorded.batch, batch)
        return recorded.replay()[batch.output_rows]  # a copy: the next step of this size writes over the graph's own

    def _size_of(self, batch: StepBatch) -> int | None:
        """The graph's size, or None where the step is not one that graphs are made of."""
        num_rows = len(batch.context_lengths)
        is_decode = (
            len(batch.tokens) == num_rows > 0
            and not batch.groups
            and not batch.tree_masks
            and batch.page_tables.shape[1] <= self.widest
        )
        return next((size for size in self.sizes if size >= num_rows), None) if is_decode else None

    def _try_to_record(self, size: int, device: torch.device) -> _Recorded | None:
        try:
            self._recorded[size] = self._record_size(size, device)
        except RuntimeError as error:  # what torch raises of whatever CUDA refuses
            log.warning("steps run without CUDA graphs, which is slower: %s", error)
            self.sizes = []
        return self._recorded.get(size)

    def _record_size(self, size: int, device: torch.device) -> _Recorded:
        batch = _empty(size, self.widest, device)

        def step() -> Tensor:
            with use_backends(**{"*": "triton"}):  # nothing else skips slot -1 and never looks at the host
                return self.model.forward(batch, self.kv)

        return _Recorded(batch=batch, replay=self._record(step))


def measure_blocks_of(model: Model, kv: KVPool, *, timer: Timer | None = None) -> None:
    """Time the blocks of the kernels that a decode step of `model` launches, where the file on disk lacks them."""
    with measure_blocks(timer), use_backends(**{"*": "triton"}):
        model.forward(_empty(1, 1, kv.keys[0].device), kv)


def _empty(size: int, width: int, device: torch.device) -> StepBatch:
    """`size` rows of padding."""

    def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return StepBatch(
        tokens=zeros(size, dtype=torch.int64),
        positions=zeros(size, dtype=torch.int64),
        query_offsets=torch.arange(size + 1, dtype=torch.int32, device=device),
        context_lengths=zeros(size, dtype=torch.int32),
        page_tables=zeros(size, width, dtype=torch.int32),
        slots=torch.full((size,), -1, dtype=torch.int64, device=device),
        output_rows=torch.arange(size, dtype=torch.int64, device=device),
    )


def _fill(target: StepBatch, batch: StepBatch) -> None:
    """Copy the rows in, and make padding of those behind them."""
    num_rows, width = batch.page_tables.shape
    target.tokens[:num_rows] = batch.tokens
    target.positions[:num_rows] = batch.positions
    target.context_lengths[:num_rows] = batch.context_lengths
    target.page_tables[:num_rows, :width] = batch.page_tables
    target.slots[:num_rows] = batch.slots
    target.context_lengths[num_rows:] = 0
    target.slots[num_rows:] = -1
