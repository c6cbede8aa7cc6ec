"""A model whose logits are a hash of exactly the tokens that a position may see, read back from the KV pool.

A wrong slot, page, position, mask or copy therefore changes what it says.
"""

import random
import zlib
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from ramet.runtime.execution.local import LocalExecutor
from ramet.runtime.models.batch import KVPool, StepBatch
from ramet.runtime.types import GenerateSpec, PlannedRow, SampledRow, SequenceStart, StepPlan

V, PAGE, NUM_PAGES = 61, 4, 64


def logits_of(context: Sequence[tuple[int, int]]) -> Tensor:
    """float32 [V + 3] of the (position, token) pairs seen; the last three columns are padding that would always win."""
    rng = random.Random(zlib.crc32(repr(list(context)).encode()))
    return torch.tensor([rng.gauss(0, 2) for _ in range(V)] + [100.0] * 3)


class EchoModel:
    """Keys hold tokens, values hold positions."""

    def forward(self, batch: StepBatch, kv: KVPool) -> Tensor:
        tokens, places = kv.keys[0].view(-1), kv.values[0].view(-1)
        tokens[batch.slots] = batch.tokens.float()
        places[batch.slots] = batch.positions.float()
        logits = torch.zeros(len(batch.output_rows), V + 3)
        for i, token in enumerate(batch.output_rows.tolist()):
            logits[i] = logits_of(self._seen(batch, kv, token))
        return logits

    def _seen(self, batch: StepBatch, kv: KVPool, token: int) -> list[tuple[int, int]]:
        row = int((batch.query_offsets <= token).sum()) - 1
        first, length = int(batch.query_offsets[row]), int(batch.context_lengths[row])
        num_new = int(batch.query_offsets[row + 1]) - first
        mask = (batch.tree_masks or {}).get(row, torch.ones(num_new, num_new, dtype=torch.bool).tril())
        indices = [*range(length - num_new), *(length - num_new + i for i in mask[token - first].nonzero()[:, 0])]
        return [self._read(batch, kv, row, int(index)) for index in indices]

    def _read(self, batch: StepBatch, kv: KVPool, row: int, index: int) -> tuple[int, int]:
        page = int(batch.page_tables[row, index // PAGE])
        return int(kv.values[0][page, index % PAGE, 0, 0]), int(kv.keys[0][page, index % PAGE, 0, 0])


def make_pool() -> KVPool:
    return KVPool(keys=[torch.full((NUM_PAGES, PAGE, 1, 1), -7.0)], values=[torch.full((NUM_PAGES, PAGE, 1, 1), -7.0)])


class Desk:
    """An executor, and the shortest way to run plans on it."""

    def __init__(self, **options: object) -> None:
        self.kv = make_pool()
        self.executor = LocalExecutor(EchoModel(), self.kv, vocabulary_size=V, end_ids=(0,), seed=5, **options)  # type: ignore[arg-type]

    def run(self, *rows: PlannedRow, starts: Sequence[SequenceStart] = (), **plan: object) -> list[SampledRow]:
        return list(self.executor.execute(StepPlan(rows, starts, **plan)).rows)  # type: ignore[arg-type]

    def generate(
        self, prompt: Sequence[int], spec: GenerateSpec, num_tokens: int, pages: Sequence[int] = range(40)
    ) -> list[int]:
        """One token a step, alone."""
        starts, tokens, start = [SequenceStart(1, spec, prompt, ())], list(prompt), 0
        while len(tokens) < len(prompt) + num_tokens:
            (row,) = self.run(PlannedRow(1, tokens[start:], start, pages, 1), starts=starts)
            assert row.error is None, row.error
            start, starts = len(tokens), []
            tokens += row.tokens
        return tokens[len(prompt) :]


@pytest.fixture
def make_desk() -> Callable[..., Desk]:
    return Desk


@pytest.fixture
def expected_logits() -> Callable[[Sequence[int]], Tensor]:
    """The model's logits after a line of tokens, without its padding."""
    return lambda tokens: logits_of(list(enumerate(tokens)))[:V]
