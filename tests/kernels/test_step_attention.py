"""The planned attention equals the definition: rows mixed, pages scattered or in a row, windows, trees, soft caps."""

from typing import Any

import pytest
import torch

from ramet.kernels.registry import use_backends
from ramet.kernels.step_attention import plan_attention

H, G, D = 6, 2, 16


def make_step(rows: list[tuple[int, int]], page_size: int, *, scattered: bool, dtype: torch.dtype) -> dict[str, Any]:
    """rows: (keys before, new tokens). Unused slots hold NaN: nobody may read them."""
    g = torch.Generator().manual_seed(0)
    lengths = [before + new for before, new in rows]
    width = -(-max(lengths) // page_size)
    num_pages = width * len(rows)
    order = torch.randperm(num_pages, generator=g) if scattered else torch.arange(num_pages)
    tables = order.view(len(rows), width).to(torch.int32)
    pools = [torch.full((num_pages, page_size, G, D), float("nan"), dtype=dtype) for _ in range(2)]
    for table, length in zip(tables, lengths, strict=True):
        slots = [int(table[j // page_size]) * page_size + j % page_size for j in range(length)]
        for pool in pools:
            pool.view(-1, G, D)[slots] = torch.randn(length, G, D, generator=g).to(dtype)
    offsets = torch.tensor([0, *torch.tensor([new for _, new in rows]).cumsum(0).tolist()], dtype=torch.int32)
    fused = torch.randn(int(offsets[-1]), H + 2 * G, D, generator=g).to(dtype)
    return dict(
        q=fused[:, :H], pools=pools, offsets=offsets, lengths=torch.tensor(lengths, dtype=torch.int32), tables=tables,
        page_size=page_size,
    )  # fmt: skip


def attend(step: dict[str, Any], backend: str, *, trees: Any = None, positions: Any = None, **options: Any) -> Any:
    with use_backends(**{"*": backend}):
        attention = plan_attention(
            step["offsets"], step["lengths"], step["tables"], page_size=step["page_size"], tree_masks=trees,
            positions=positions,
        )  # fmt: skip
        return attention(step["q"], *step["pools"], scale=0.3, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(
    "options", [{}, {"window": 5}, {"window": 200}, {"soft_cap": 2.0}, {"window": 9, "soft_cap": 1.0}]
)
def test_equals_the_definition(dtype: torch.dtype, scattered: bool, page_size: int, options: dict[str, Any]) -> None:
    rows = [(0, 1), (7, 1), (30, 1), (0, 5), (13, 6), (0, 150), (20, 129)]
    step = make_step(rows, page_size, scattered=scattered, dtype=dtype)
    ours, expected = attend(step, "torch", **options), attend(step, "reference", **options)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
    assert ours.is_contiguous()


@pytest.mark.parametrize("window", [None, 4])
def test_trees_see_their_ancestors(window: int | None) -> None:
    parents = [-1, 0, 0, 1, 2, 2]
    tree = torch.eye(len(parents), dtype=torch.bool)
    depth = torch.zeros(len(parents), dtype=torch.int64)
    for i, parent in enumerate(parents):
        if parent >= 0:
            tree[i] |= tree[parent]
            depth[i] = depth[parent] + 1
    step = make_step([(3, 2), (9, len(parents)), (4, 1)], 4, scattered=True, dtype=torch.float32)
    positions = torch.cat([torch.tensor([3, 4]), 9 + depth, torch.tensor([4])])
    given = dict(trees={1: tree}, positions=positions, window=window)
    torch.testing.assert_close(attend(step, "torch", **given), attend(step, "reference", **given))


def test_rows_without_new_tokens_are_left_out() -> None:
    step = make_step([(5, 0), (3, 2), (8, 0)], 4, scattered=False, dtype=torch.float32)
    torch.testing.assert_close(attend(step, "torch"), attend(step, "reference"))


def test_a_row_alone_and_among_others_gives_the_same_bits() -> None:
    rows = [(0, 1), (37, 1), (13, 6)]
    together = attend(make_step(rows, 4, scattered=True, dtype=torch.bfloat16), "torch")
    step = make_step(rows, 4, scattered=True, dtype=torch.bfloat16)
    for r in range(len(rows)):
        begin, end = step["offsets"][r : r + 2].tolist()
        alone = {**step, "q": step["q"][begin:end], "offsets": step["offsets"][r : r + 2] - begin,
                 "lengths": step["lengths"][r : r + 1], "tables": step["tables"][r : r + 1]}  # fmt: skip
        assert torch.equal(attend(alone, "torch"), together[begin:end])
