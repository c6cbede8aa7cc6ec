"""Paged attention on every backend: odd lengths, pages of 1, 4 and 16, windows at their edges, caps, trees, fork
groups.
"""

from typing import Any

import pytest
import torch

from ramet.kernels.attention import decode_attention, extend_attention
from ramet.kernels.decode_attention import decode_attention_triton
from ramet.kernels.extend_attention import extend_attention_triton
from ramet.kernels.kv_quantize import kv_write_int8

BACKENDS = ["torch", "triton"]
LENGTHS = [(3, 5), (0, 0), (4, 17), (1, 1), (1, 34), (9, 9)]
"""Of each row: new tokens, and keys in all. A row may be empty."""


def make_step(
    page_size: int, device: str, *, dtype: torch.dtype = torch.float32, shared: int = 0, head_size: int = 20
) -> dict[str, Any]:
    """Rows over scattered pages, all keys written; what no row owns is NaN. The first `shared` keys of rows 2 and 4
    are one.
    """
    H, G, D = 6, 2, head_size
    g = torch.Generator().manual_seed(0)
    width = -(-max(length for _, length in LENGTHS) // page_size)
    pages = torch.randperm(len(LENGTHS) * width, generator=g).int().view(len(LENGTHS), width)
    if shared:
        pages[4, : shared // page_size] = pages[2, : shared // page_size]
    pools = [torch.full((len(LENGTHS) * width, page_size, G, D), float("nan")) for _ in range(2)]
    for row, (_, length) in enumerate(LENGTHS):
        for at in range(length):
            for pool in pools:
                pool[pages[row, at // page_size], at % page_size] = torch.randn(G, D, generator=g)
    counts = torch.tensor([new for new, _ in LENGTHS])
    offsets = torch.cat([torch.zeros(1), counts.cumsum(0)]).int()
    q = torch.randn(int(counts.sum()), H, D + 4, generator=g)[..., :D]
    step = dict(
        q=q.to(dtype),
        key_pages=pools[0].to(dtype),
        value_pages=pools[1].to(dtype),
        query_offsets=offsets,
        context_lengths=torch.tensor([length for _, length in LENGTHS]).int(),
        page_tables=pages,
    )
    return {name: tensor.to(device) for name, tensor in step.items()} | {"scale": 0.3}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 4, 5, 16])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_extend_equals_reference(
    backend: str, page_size: int, window: int | None, soft_cap: float | None, device: str
) -> None:
    step = make_step(page_size, device)
    expected = extend_attention.on("reference")(**step, window=window, soft_cap=soft_cap)
    got = extend_attention.on(backend)(**step, window=window, soft_cap=soft_cap)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 16])
def test_decode_equals_reference(backend: str, page_size: int, window: int | None, device: str) -> None:
    step = make_step(page_size, device)
    step["q"] = step["q"][:6]
    step.pop("query_offsets")
    step["context_lengths"][1] = 2  # every row decodes; the empty one gets two keys that are there
    step["page_tables"][1] = step["page_tables"][2]
    expected = decode_attention.on("reference")(**step, window=window)
    torch.testing.assert_close(decode_attention.on(backend)(**step, window=window), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [None, 2, 6])
def test_token_trees(backend: str, window: int | None, device: str) -> None:
    step = make_step(4, device)
    tree = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool, device=device)
    positions = torch.cat([torch.arange(length - new, length) for new, length in LENGTHS])
    positions[3:7] = 13 + torch.tensor([0, 1, 1, 2])  # row 2: depth in the tree
    options = dict(tree_masks={2: tree}, positions=positions.to(device), window=window)
    expected = extend_attention.on("reference")(**step, **options)
    torch.testing.assert_close(extend_attention.on(backend)(**step, **options), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("tile", [16, 64])
def test_a_fork_group_gets_what_its_rows_get_alone(page_size: int, window: int | None, tile: int, device: str) -> None:
    """Cascade: the shared keys once for all rows of the group, then each row's own, then joined."""
    step = make_step(page_size, device, shared=12)
    groups = [((2, 4), 12), ((0, 2), 2), ((5,), 1)]  # a row is served by its first group; one alone is no group
    expected = extend_attention.on("reference")(**step, window=window)
    got = extend_attention_triton(**step, window=window, groups=groups, tile=tile, block=16)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_decode_bits_do_not_depend_on_the_batch(device: str) -> None:
    step = make_step(4, device)
    step["q"] = step["q"][:6]
    step.pop("query_offsets")
    together = decode_attention_triton(**step)
    for row in (0, 2, 4):
        alone = {
            name: value[row : row + 1] if name in ("q", "context_lengths", "page_tables") else value
            for name, value in step.items()
        }
        alone["page_tables"] = alone["page_tables"][:, : -(-LENGTHS[row][1] // 4)]
        assert torch.equal(decode_attention_triton(**alone)[0], together[row])
    assert together[1].eq(0).all()  # no keys: padding


def quantized(step: dict[str, Any]) -> dict[str, Any]:
    """The same step over int8 pages; slots that no row owns hold codes and scales that must not be read."""
    shape = step["key_pages"].shape
    pages = [torch.full(shape, 99, dtype=torch.int8, device=step["q"].device) for _ in range(2)]
    scales = [torch.full(shape[:3], float("nan"), dtype=torch.float16, device=step["q"].device) for _ in range(2)]
    key, value = (step[name].flatten(0, 1) for name in ("key_pages", "value_pages"))
    slots = torch.arange(len(key), device=key.device)
    slots[key.isnan().any(-1).any(-1)] = -1
    kv_write_int8.on("reference")(key.nan_to_num(), value.nan_to_num(), *pages, *scales, slots)
    names = ("key_pages", "value_pages", "key_scales", "value_scales")
    return step | dict(zip(names, (*pages, *scales), strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (4, 2.0)])
@pytest.mark.parametrize("head_size", [64, 96])
def test_int8_pages(
    backend: str, page_size: int, window: int | None, soft_cap: float | None, head_size: int, device: str
) -> None:
    step = make_step(page_size, device, head_size=head_size)
    int8, options = quantized(step), dict(window=window, soft_cap=soft_cap)
    expected = extend_attention.on("reference")(**int8, **options)
    torch.testing.assert_close(extend_attention.on(backend)(**int8, **options), expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(
        expected, extend_attention.on("reference")(**step, **options), atol=0.1, rtol=0
    )  # and near what was written
    for tensors in (int8, step):
        tensors["q"], tensors["context_lengths"] = tensors["q"][:6], tensors["context_lengths"].clone()
        tensors["context_lengths"][1] = 1
        tensors["page_tables"] = tensors["page_tables"].clone()
        tensors["page_tables"][1] = tensors["page_tables"][2]
        tensors.pop("query_offsets")
    expected = decode_attention.on("reference")(**int8, **options)
    torch.testing.assert_close(decode_attention.on(backend)(**int8, **options), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("tile", [16, 64])
def test_a_fork_group_over_int8_pages(tile: int, device: str) -> None:
    step = quantized(make_step(4, device, shared=12, head_size=32))
    got = extend_attention_triton(**step, groups=[((2, 4), 12)], tile=tile)
    torch.testing.assert_close(got, extend_attention.on("reference")(**step), atol=2e-5, rtol=1e-4)
