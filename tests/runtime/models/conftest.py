"""Runs a model as the engine does, over scattered pages, and keeps every logit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.runtime.models.base import Model, make_kv_pool
from ramet.runtime.models.batch import KVPool, StepBatch

Run = Callable[..., tuple[list[list[int]], list[Tensor]]]


class Runner:
    """One pool, one page table per row; page ids are dealt in an order that makes neighbours strangers."""

    def __init__(self, model: Model, num_rows: int, num_tokens: int, page_size: int, dtype: torch.dtype) -> None:
        self.model, self.page_size = model, page_size
        pages_per_row = -(-num_tokens // page_size)
        num_pages = num_rows * pages_per_row
        self.kv: KVPool = make_kv_pool(model.config, num_pages, page_size, dtype, "cpu")
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(7))
        self.tables = order.view(num_rows, pages_per_row).to(torch.int32)
        self.lengths = [0] * num_rows

    def step(self, rows: Sequence[tuple[int, Sequence[int]]], *, last_only: bool = False) -> Tensor:
        """Compute the given new tokens of the given rows; returns logits of all of them, laid end to end, or of the
        last of each row."""
        tokens, positions, slots, offsets = [], [], [], [0]
        for row, new in rows:
            at = range(self.lengths[row], self.lengths[row] + len(new))
            table = self.tables[row].tolist()
            tokens += new
            positions += at
            slots += [table[p // self.page_size] * self.page_size + p % self.page_size for p in at]
            offsets.append(len(tokens))
            self.lengths[row] += len(new)
        which = [row for row, _ in rows]
        batch = StepBatch(
            tokens=torch.tensor(tokens),
            positions=torch.tensor(positions),
            query_offsets=torch.tensor(offsets, dtype=torch.int32),
            context_lengths=torch.tensor([self.lengths[row] for row in which], dtype=torch.int32),
            page_tables=self.tables[which],
            slots=torch.tensor(slots),
            output_rows=torch.tensor(offsets[1:]) - 1 if last_only else torch.arange(len(tokens)),
        )
        return self.model.forward(batch, self.kv)


def run_greedy(
    model: Model,
    prompts: Sequence[Sequence[int]],
    num_new: int,
    *,
    page_size: int = 4,
    chunk: int = 5,
    dtype: torch.dtype = torch.float32,
    last_only: bool = False,
) -> tuple[list[list[int]], list[Tensor]]:
    """Greedy tokens of each prompt, and its logits at every position, or (`last_only`) at the last of each chunk.

    Prompts go in by chunks of `chunk` tokens, so that chunks of some rows meet single tokens of others in one step.
    """
    longest = max(map(len, prompts)) + num_new
    runner = Runner(model, len(prompts), longest, page_size, dtype)
    pending = [list(prompt) for prompt in prompts]
    outputs: list[list[int]] = [[] for _ in prompts]
    logits: list[list[Tensor]] = [[] for _ in prompts]
    while any(len(output) < num_new for output in outputs):
        rows = [(row, pending[row][:chunk]) for row in range(len(prompts)) if len(outputs[row]) < num_new]
        pieces = runner.step(rows, last_only=last_only).split([1 if last_only else len(new) for _, new in rows])
        for (row, new), piece in zip(rows, pieces, strict=True):
            logits[row].append(piece)
            del pending[row][: len(new)]
            if not pending[row]:
                outputs[row].append(int(piece[-1].argmax()))
                pending[row].append(outputs[row][-1])
    return outputs, [torch.cat(pieces) for pieces in logits]


@pytest.fixture
def greedy() -> Run:
    return run_greedy


@pytest.fixture
def make_runner() -> type[Runner]:
    return Runner


def transformers_from_gguf(path: Path, **settings: Any) -> Any:
    """transformers' own reading of a GGUF file, in float32 (without accelerate, which its front door asks for).

    `settings` are set on its config: what its reader leaves at a default.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    for name, value in settings.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model


@pytest.fixture
def from_gguf() -> Callable[..., Any]:
    return transformers_from_gguf
