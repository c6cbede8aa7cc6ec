"""Copying page heads and moving pages: bytes, whatever their type, and nothing beside them."""

import pytest
import torch

from ramet.kernels.kv_copy import kv_copy, kv_move


def _pages(dtype: torch.dtype, page_size: int, tail: tuple[int, ...], device: str, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-100, 100, (9, page_size, *tail), generator=g).to(dtype).to(device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("tail", [(2, 20), (3, 1), (3,)])
def test_copy_equals_reference(dtype: torch.dtype, page_size: int, tail: tuple[int, ...], device: str) -> None:
    ours, theirs = (_pages(dtype, page_size, tail, device) for _ in range(2))
    copies = torch.tensor([[0, 5, page_size], [1, 6, 1], [0, 7, page_size // 2], [2, 8, 0]], dtype=torch.int32).to(
        device
    )
    kv_copy.on("triton")(ours, copies)
    kv_copy.on("reference")(theirs, copies)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_move_equals_reference(page_size: int, device: str) -> None:
    source = _pages(torch.bfloat16, page_size, (2, 20), device)
    ours, theirs = (_pages(torch.bfloat16, page_size, (2, 20), device, seed=1) for _ in range(2))
    moves = torch.tensor([[8, 0], [0, 3], [4, 8]], dtype=torch.int32, device=device)
    kv_move.on("triton")(source, ours, moves)
    kv_move.on("reference")(source, theirs, moves)
    assert torch.equal(ours, theirs)


def test_nothing_to_do_is_done(device: str) -> None:
    pages = _pages(torch.float32, 4, (2,), device)
    before = pages.clone()
    kv_copy.on("triton")(pages, torch.empty(0, 3, dtype=torch.int32, device=device))
    kv_move.on("triton")(pages, pages, torch.empty(0, 2, dtype=torch.int32, device=device))
    assert torch.equal(pages, before)
