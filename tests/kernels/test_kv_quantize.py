"""int8 keys and values: half a step around what was written, once turned back; scales per head, neighbours spared."""

import pytest
import torch

from ramet.kernels.kv_quantize import kv_write_int8, read_int8
from ramet.kernels.rotate_heads import rotate_heads


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("T", "G", "D", "S"), [(1, 1, 32, 1), (5, 2, 96, 4), (9, 3, 64, 16)])
def test_reads_back_within_half_a_step(
    backend: str, dtype: torch.dtype, T: int, G: int, D: int, S: int, device: str
) -> None:
    g = torch.Generator().manual_seed(0)
    key, value = (torch.randn(T, G, D + 3, generator=g).to(dtype)[..., :D].to(device) for _ in range(2))
    key[0] = 0  # a row of zeros has scale 0
    value[0] = 1e-9  # so has one that is too small for a float16 scale
    num_pages = -(-T // S) + 1
    slots = torch.randperm(num_pages * S, generator=g)[:T].to(device)
    slots[-1] = -1 if T > 1 else slots[-1]
    pages = [torch.full((num_pages, S, G, D), 99, dtype=torch.int8, device=device) for _ in range(2)]
    scales = [torch.full((num_pages, S, G), float("nan"), dtype=torch.float16, device=device) for _ in range(2)]
    kv_write_int8.on(backend)(key, value, *pages, *scales, slots)
    kept = slots >= 0
    for new, codes, scale in zip((key, value), pages, scales, strict=True):
        wanted = rotate_heads.on("reference")(new[kept].float())
        read = read_int8(codes, scale).view(-1, G, D)[slots[kept]]
        step = wanted.abs().amax(-1, keepdim=True) / 127
        assert ((read - wanted).abs() <= 0.57 * step + 1e-7).all()  # 0.5, and what the rounded scale cuts off
        assert (codes.view(-1, G, D) == 99).all(-1).all(-1).sum() == num_pages * S - kept.sum()
        assert scale.isnan().sum() == (num_pages * S - kept.sum()) * G
