"""What every model keeps, whatever its family: branches share pages, trees equal their paths, only what is asked for is
returned, and other dtypes are near."""

from typing import Any

import pytest
import torch

from ramet.kernels.registry import use_backends
from ramet.runtime.models.base import QuantizedTensor, make_kv_pool
from ramet.runtime.models.batch import KVPool, StepBatch
from ramet.runtime.models.config import ModelConfig, RopeConfig
from ramet.runtime.models.layers import Decoder
from ramet.runtime.models.registry import build_model

CONFIG = ModelConfig(
    model_type="gemma3_text", vocab_size=61, hidden_size=32, intermediate_size=48, num_layers=3, num_heads=4,
    num_kv_heads=2, head_dim=8, context_length=64, rms_norm_eps=1e-6, rope=RopeConfig(theta=1e4),
    local_rope=RopeConfig(theta=100.0), windows=(6, None, 6), activation="gelu_tanh", tie_word_embeddings=True,
)  # fmt: skip
S = 4


class RandomWeights:
    """Any tensor asked for, of the shape that its name wants."""

    def __init__(self, config: ModelConfig) -> None:
        d, f, queries, keys = (
            config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
        )  # fmt: skip
        self.shapes = {
            "embed_tokens": (config.vocab_size, d), "q_proj": (queries, d), "k_proj": (keys, d), "v_proj": (keys, d),
            "o_proj": (d, queries), "gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f),
            "q_norm": (config.head_dim,), "k_norm": (config.head_dim,),
        }  # fmt: skip
        self.hidden = d

    def has(self, name: str) -> bool:
        return name.endswith(".weight")

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        shape = self.shapes.get(name.split(".")[-2], (self.hidden,))
        return (0.3 * torch.randn(shape, generator=generator)).to(dtype)

    def read_raw(self, name: str) -> QuantizedTensor | torch.Tensor:
        return self.read(name)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return build_model(CONFIG, RandomWeights(CONFIG), dtype=torch.float32)


def pool(num_pages: int = 32, dtype: torch.dtype = torch.float32) -> KVPool:
    return make_kv_pool(CONFIG, num_pages, S, dtype, "cpu")


def batch(rows: list[tuple[list[int], int, list[int]]], output_rows: list[int] | None = None, **more: Any) -> StepBatch:
    """rows: (new tokens, tokens before, pages)."""
    tokens = [token for new, _, _ in rows for token in new]
    at = [(start + i, pages) for new, start, pages in rows for i in range(len(new))]
    width = max(len(pages) for *_, pages in rows)
    offsets = torch.tensor([0, *(len(new) for new, *_ in rows)]).cumsum(0).to(torch.int32)
    fields = dict(
        tokens=torch.tensor(tokens),
        positions=torch.tensor([place for place, _ in at]),
        query_offsets=offsets,
        context_lengths=torch.tensor([start + len(new) for new, start, _ in rows], dtype=torch.int32),
        page_tables=torch.tensor([[*pages, *[0] * (width - len(pages))] for *_, pages in rows], dtype=torch.int32),
        slots=torch.tensor([pages[place // S] * S + place % S for place, pages in at]),
        output_rows=torch.tensor(range(len(tokens)) if output_rows is None else output_rows, dtype=torch.int64),
    )
    return StepBatch(**{**fields, **more})


PROMPT = [5, 9, 33, 2, 17, 8, 8, 41, 60]


def test_only_wanted_rows_are_returned_and_in_order(model: Decoder) -> None:
    every = model.forward(batch([(PROMPT, 0, [3, 1, 7])]), pool())
    some = model.forward(batch([(PROMPT, 0, [3, 1, 7])], output_rows=[8, 0, 3]), pool())
    assert every.dtype == torch.float32 and some.shape == (3, CONFIG.vocab_size)
    torch.testing.assert_close(some, every[[8, 0, 3]])
    assert model.forward(batch([(PROMPT, 0, [3, 1, 7])], output_rows=[]), pool()).shape == (0, CONFIG.vocab_size)


def test_rows_share_pages_of_a_common_prefix(model: Decoder) -> None:
    """Two branches over one prompt of two pages: each continues as if it owned it."""
    shared, kv = PROMPT[:8], pool()
    model.forward(batch([(shared, 0, [2, 5])]), kv)
    forked = model.forward(batch([([11, 12], 8, [2, 5, 9]), ([13], 8, [2, 5, 4])]), kv)
    for row, new in ((slice(0, 2), [11, 12]), (slice(2, 3), [13])):
        alone = model.forward(batch([([*shared, *new], 0, [0, 1, 2])]), pool())
        torch.testing.assert_close(forked[row], alone[8:], rtol=1e-5, atol=1e-5)


def test_a_token_tree_equals_each_of_its_paths(model: Decoder) -> None:
    parents, new = [-1, 0, 0, 1, 2], [21, 22, 23, 24, 25]
    paths: list[list[int]] = []
    for i, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), i])
    mask = torch.zeros(5, 5, dtype=torch.bool)
    for i, path in enumerate(paths):
        mask[i, path] = True
    kv = pool()
    model.forward(batch([(PROMPT, 0, [2, 5, 1])]), kv)
    positions = torch.tensor([len(PROMPT) + len(path) - 1 for path in paths])
    step = batch([(new, len(PROMPT), [2, 5, 1, 8])], positions=positions, tree_masks={0: mask})
    tree = model.forward(step, kv)
    for i, path in enumerate(paths):
        line = [*PROMPT, *(new[j] for j in path)]
        alone = model.forward(batch([(line, 0, [0, 1, 2, 3])]), pool())
        torch.testing.assert_close(tree[i], alone[-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_near(model: Decoder, dtype: torch.dtype) -> None:
    low = build_model(CONFIG, RandomWeights(CONFIG), dtype=dtype)
    expected = model.forward(batch([(PROMPT, 0, [3, 1, 7])]), pool())
    found = low.forward(batch([(PROMPT, 0, [3, 1, 7])]), pool(dtype=dtype))
    scale = expected.abs().max()
    torch.testing.assert_close(found / scale, expected / scale, rtol=0, atol=0.08 if dtype != torch.float32 else 1e-6)


def test_weights_and_pool_may_differ_in_dtype(model: Decoder) -> None:
    expected = model.forward(batch([(PROMPT, 0, [3, 1, 7])]), pool())
    found = model.forward(batch([(PROMPT, 0, [3, 1, 7])]), pool(dtype=torch.bfloat16))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.1 * float(expected.abs().max()))


@pytest.mark.parametrize("backend", ["torch", "reference", "triton"])
def test_int8_pools_are_near_and_the_same_on_every_backend(model: Decoder, backend: str) -> None:
    step = batch([(PROMPT, 0, [3, 1, 7])])
    expected = model.forward(step, pool())
    with use_backends(**{"*": backend}):
        found = model.forward(step, pool(dtype=torch.int8))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05 * float(expected.abs().max()))
    with use_backends(**{"*": "reference"}):
        same = model.forward(step, pool(dtype=torch.int8))
    torch.testing.assert_close(found, same, rtol=0, atol=0.01 * float(expected.abs().max()))


def test_pool_is_one_allocation_of_zeros() -> None:
    kv = pool(num_pages=6)
    assert len(kv.keys) == len(kv.values) == CONFIG.num_layers and kv.page_size == S
    assert kv.keys[0].shape == (6, S, CONFIG.num_kv_heads, CONFIG.head_dim) and kv.keys[0].is_contiguous()
    assert not any(tensor.any() for tensor in (*kv.keys, *kv.values))
