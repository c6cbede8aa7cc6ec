"""Dequantising equals the `gguf` package's numpy version, for random bytes of every type."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as oracle

from ramet.runtime.weights.ggml import GGML_TYPES, PLAIN_TYPES, dequantize

QUANTISED = {code: kind for code, kind in GGML_TYPES.items() if kind.name not in PLAIN_TYPES}


HALVES = {
    "Q4_1": [(0, 2), (2, 4)], "Q5_1": [(0, 2), (2, 4)], "Q4_K": [(0, 2), (2, 4)], "Q5_K": [(0, 2), (2, 4)],
    "Q2_K": [(80, 82), (82, 84)], "Q3_K": [(108, 110)], "Q6_K": [(208, 210)],
}  # fmt: skip
"""Where a block has its half-precision scales, if not in bytes 0 and 1."""


def random_blocks(code: int, rows: int, blocks_per_row: int) -> np.ndarray:
    """Random bytes with sane half-precision scales."""
    kind = GGML_TYPES[code]
    rng = np.random.default_rng(code)
    raw = rng.integers(0, 256, (rows * blocks_per_row, kind.block_bytes), dtype=np.uint8)
    for start, stop in HALVES.get(kind.name, [(0, 2)]):
        raw[:, start:stop] = rng.normal(size=(len(raw), 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("code", QUANTISED, ids=lambda code: GGML_TYPES[code].name)
@pytest.mark.parametrize(("rows", "blocks_per_row"), [(1, 1), (3, 5), (70, 33)])
def test_equals_the_oracle(code: int, rows: int, blocks_per_row: int) -> None:
    kind = GGML_TYPES[code]
    blocks = random_blocks(code, rows, blocks_per_row)
    out = torch.full((rows, blocks_per_row * kind.block_size), float("nan"))
    dequantize(torch.from_numpy(blocks), kind, out)
    expected = oracle(blocks, GGMLQuantizationType(code))
    torch.testing.assert_close(out, torch.from_numpy(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("code", QUANTISED, ids=lambda code: GGML_TYPES[code].name)
def test_chunks_do_not_show(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = GGML_TYPES[code]
    blocks = torch.from_numpy(random_blocks(code, 7, 9))
    whole, pieces = (torch.full((7, 9 * kind.block_size), float("nan"), dtype=torch.bfloat16) for _ in range(2))
    dequantize(blocks, kind, whole)
    monkeypatch.setattr("ramet.runtime.weights.ggml._CHUNK", 300)
    dequantize(blocks, kind, pieces)
    assert torch.equal(whole, pieces)


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    from gguf import GGML_QUANT_SIZES

    for code, kind in GGML_TYPES.items():
        assert GGML_QUANT_SIZES[GGMLQuantizationType(code)] == (kind.block_size, kind.block_bytes)
