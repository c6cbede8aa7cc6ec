"""Rotation of queries and keys, whole heads and part of them."""

import pytest
import torch

from ramet.kernels.rope import make_inputs, make_rope_table, rope


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rotary", [None, 6])
@pytest.mark.parametrize(("T", "H", "G", "D"), [(0, 2, 1, 8), (1, 1, 1, 8), (5, 6, 2, 12)])
def test_triton_equals_reference(
    dtype: torch.dtype, rotary: int | None, T: int, H: int, G: int, D: int, device: str
) -> None:
    ours, theirs = (make_inputs(T, H, G, D, dtype, device, rotary=rotary, pad=3) for _ in range(2))
    rope.on("triton")(**ours)
    rope.on("reference")(**theirs)
    for name in ("q", "k"):
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-2 if dtype == torch.bfloat16 else 1e-6, rtol=1e-2)


def test_rotation_keeps_lengths_and_relative_angles() -> None:
    """q . k after rotation depends on the distance of their positions alone."""
    table = make_rope_table([1.0, 0.1], 64)
    vectors = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(0))
    products = []
    for position in (0, 17, 50):
        q, k = vectors[:1].clone(), vectors[1:].clone()
        empty = torch.empty(1, 0, 4)
        rope(q, empty.clone(), torch.tensor([position + 3]), table)
        rope(k, empty.clone(), torch.tensor([position]), table)
        products.append((q * k).sum().item())
    assert products == pytest.approx([products[0]] * 3, abs=1e-5)


def test_angles_are_exact_far_out() -> None:
    table = make_rope_table([1.0], 100_001)
    expected = torch.tensor(100_000.0, dtype=torch.float64).cos().float()
    assert table[100_000, 0, 0] == expected
