"""The rotation of heads: its own inverse, keeps products, alike on every backend, also where D is no power of two."""

import pytest
import torch

from ramet.kernels.rotate_heads import rotate_heads, rotation


@pytest.mark.parametrize("size", [1, 2, 20, 64, 96, 256])
def test_is_its_own_inverse_and_spreads_one_channel(size: int) -> None:
    matrix = rotation(size, torch.device("cpu"))
    torch.testing.assert_close(matrix @ matrix, torch.eye(size))
    block = size & -size
    assert matrix[0].abs().max().item() == pytest.approx(block**-0.5)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("T", "H", "D"), [(0, 2, 32), (1, 1, 16), (7, 3, 96), (5, 9, 64)])
def test_equals_reference(backend: str, dtype: torch.dtype, T: int, H: int, D: int, device: str) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(T, H + 2, D + 5, generator=g).to(dtype)[:, :H, :D].to(device)  # strided
    before = x.clone()
    got = rotate_heads.on(backend)(x)
    assert got.dtype == dtype and got.is_contiguous() and torch.equal(x, before)
    exact = rotate_heads.on("reference")(x.float())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.float(), exact, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(exact.norm(dim=-1), x.float().norm(dim=-1))
