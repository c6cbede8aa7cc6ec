"""Steps replayed from recordings: padded, reused, and what the model gives alone. A recorder that runs the step anew
stands for CUDA; kernels are Triton's, interpreted where there is no GPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ramet.kernels import tuning
from ramet.kernels.registry import use_backends
from ramet.runtime import assembly
from ramet.runtime.assembly import _with_graphs
from ramet.runtime.errors import NotBuilt
from ramet.runtime.models.base import make_kv_pool
from ramet.runtime.models.batch import KVPool, StepBatch
from ramet.runtime.models.config import ModelConfig, RopeConfig
from ramet.runtime.models.graphed import GraphedModel, measure_blocks_of
from ramet.runtime.models.layers import Decoder
from ramet.runtime.models.registry import build_model
from ramet.runtime.types import RowGroup

CONFIG = ModelConfig(
    model_type="llama", vocab_size=61, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=16, context_length=64, rms_norm_eps=1e-6, rope=RopeConfig(theta=1e4), tie_word_embeddings=True,
)  # fmt: skip
S, WIDEST = 4, 6


class RandomWeights:
    def has(self, name: str) -> bool:
        return name.endswith(".weight")

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        d, f, inner = CONFIG.hidden_size, CONFIG.intermediate_size, CONFIG.head_dim
        shapes = {
            "embed_tokens": (CONFIG.vocab_size, d), "q_proj": (4 * inner, d), "k_proj": (2 * inner, d),
            "v_proj": (2 * inner, d), "o_proj": (d, 4 * inner),
            "gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f),
        }  # fmt: skip
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        return (0.3 * torch.randn(shapes.get(name.split(".")[-2], (d,)), generator=generator)).to(dtype)

    def read_raw(self, name: str) -> Tensor:
        return self.read(name)


class Anew:
    """Runs the step at each replay; counts what was recorded."""

    def __init__(self) -> None:
        self.num_recorded = 0

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.num_recorded += 1
        return step


@pytest.fixture(scope="module")
def model() -> Decoder:
    return build_model(CONFIG, RandomWeights(), dtype=torch.float32)


def pool(dtype: torch.dtype = torch.float32) -> KVPool:
    kv = make_kv_pool(CONFIG, 24, S, dtype, "cpu")
    for i, tensor in enumerate((*kv.keys, *kv.values)):
        generator = torch.Generator().manual_seed(i)
        tensor.copy_(torch.randn(tensor.shape, generator=generator).mul(9).to(dtype))
    for tensor in (*(kv.key_scales or ()), *(kv.value_scales or ())):
        tensor.fill_(0.01)
    return kv


def decode(lengths: list[int]) -> StepBatch:
    """Rows with so many keys, this step's own included; pages scattered, tables as wide as the longest."""
    width = -(-max(lengths) // S)
    tables = torch.randperm(24, generator=torch.Generator().manual_seed(1))[: len(lengths) * width].int()
    tables = tables.view(len(lengths), width)
    at = torch.tensor(lengths) - 1
    return StepBatch(
        tokens=torch.arange(len(lengths)) + 7,
        positions=at,
        query_offsets=torch.arange(len(lengths) + 1, dtype=torch.int32),
        context_lengths=torch.tensor(lengths, dtype=torch.int32),
        page_tables=tables,
        slots=tables[torch.arange(len(lengths)), at // S].long() * S + at % S,
        output_rows=torch.arange(len(lengths)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_padded_steps_give_what_the_model_gives_and_touch_no_other_slot(model: Decoder, dtype: torch.dtype) -> None:
    kv, expected_kv, anew = pool(dtype), pool(dtype), Anew()
    graphed = GraphedModel(model, kv, widest=WIDEST, sizes=(2, 4), record=anew)
    for lengths in ([5], [1, 9], [12, 3, 8], [2, 2, 2], [9]):  # sizes 2, 2, 4, 4, 2: rows of before are padding now
        step = decode(lengths)
        with use_backends(**{"*": "triton"}):
            expected = model.forward(step, expected_kv)
        torch.testing.assert_close(graphed.forward(step, kv), expected, atol=1e-4, rtol=1e-4)
        for ours, theirs in zip((*kv.keys, *kv.values), (*expected_kv.keys, *expected_kv.values), strict=True):
            assert (ours - theirs).abs().max() <= (
                1 if dtype == torch.int8 else 1e-4
            )  # torch's products may round apart
    assert anew.num_recorded == 2


def test_rows_come_as_they_are_asked_for(model: Decoder) -> None:
    kv = pool()
    graphed = GraphedModel(model, kv, widest=WIDEST, sizes=(4,), record=Anew())
    step = decode([5, 6, 7])
    every = graphed.forward(step, kv)
    assert torch.equal(graphed.forward(replace(step, output_rows=torch.tensor([2, 0])), kv), every[[2, 0]])
    kept = every.clone()
    graphed.forward(decode([1, 2, 3]), kv)
    assert torch.equal(every, kept)  # what was returned is the caller's


def test_what_no_graph_fits_goes_to_the_model(model: Decoder) -> None:
    kv, anew = pool(), Anew()
    graphed = GraphedModel(model, kv, widest=2, sizes=(2,), record=anew)
    step = decode([5, 6])
    prompt = StepBatch(
        tokens=torch.tensor([1, 2, 3]), positions=torch.arange(3),
        query_offsets=torch.tensor([0, 3], dtype=torch.int32),
        context_lengths=torch.tensor([3], dtype=torch.int32), page_tables=torch.tensor([[0]], dtype=torch.int32),
        slots=torch.arange(3), output_rows=torch.tensor([2]),
    )  # fmt: skip
    others = [
        prompt,
        decode([1, 2, 3]),
        decode([9]),
        replace(step, groups=(RowGroup(rows=(0, 1), num_shared_tokens=4),)),
    ]
    for each in others:  # a prompt, too many rows, too wide, a fork group
        assert torch.equal(graphed.forward(each, kv), model.forward(each, kv))
    assert torch.equal(graphed.forward(step, pool()), model.forward(step, pool()))  # another pool
    assert anew.num_recorded == 0


def test_a_recording_that_fails_leaves_the_model_as_it_is(model: Decoder, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")

    kv = pool()
    graphed = GraphedModel(model, kv, widest=WIDEST, record=refuse)
    batch = decode([3])
    assert torch.equal(graphed.forward(batch, kv), model.forward(batch, kv))
    graphed.forward(batch, kv)
    assert caplog.text.count("without CUDA graphs") == 1


def test_blocks_of_a_step_are_measured_when_asked(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a step launches with choices is timed; this model has no such kernel, so one is put in its way."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning._book.cache_clear()
    asked = []

    class Chooses:
        config = model.config

        def forward(self, batch: StepBatch, kv: KVPool) -> Tensor:
            asked.append(tuning.chosen("an_op", (5,), ((16,), (32,)), lambda blocks: None, torch.device("cpu")))
            return model.forward(batch, kv)

    measure_blocks_of(Chooses(), pool(), timer=lambda run: {16: 2.0, 32: 1.0}[run.args[0][0]])  # type: ignore[attr-defined]
    tuning._book.cache_clear()
    assert asked == [(32,)]


@pytest.mark.parametrize(("wanted", "is_graphed"), [(None, True), (True, True), (False, False)])
def test_the_setting_decides_on_a_gpu(wanted: bool | None, is_graphed: bool, model: Decoder) -> None:
    loaded = cast(Any, SimpleNamespace(model=model, device=torch.device("cuda"), config=CONFIG))
    options = cast(Any, SimpleNamespace(cuda_graphs=wanted, tuning=False, page_size=S))
    chosen = _with_graphs(options, loaded, pool(), Anew())
    assert isinstance(chosen, GraphedModel) == is_graphed
    on_cpu = cast(Any, SimpleNamespace(model=model, device=torch.device("cpu"), config=CONFIG))
    assert _with_graphs(options, on_cpu, pool(), Anew()) is model


def test_without_triton_a_gpu_runs_the_model_as_it_is_and_says_so(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assembly, "HAS_TRITON", False)
    loaded = cast(Any, SimpleNamespace(model=model, device=torch.device("cuda"), config=CONFIG))
    options = SimpleNamespace(cuda_graphs=None, tuning=None, page_size=S)
    assert assembly._with_graphs(cast(Any, options), loaded, pool(), Anew()) is model
    assert "no Triton" in caplog.text
    options.cuda_graphs = True
    with pytest.raises(NotBuilt, match="without Triton"):
        assembly._with_graphs(cast(Any, options), loaded, pool(), Anew())
