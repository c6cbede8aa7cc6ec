"""Rotary position embedding of queries and keys, in place.

The halves form: dimension i is paired with i + r/2 (as Hugging Face lays weights out; GGUF's llama rows are reordered
when they are read). The r rotary dimensions come first; dimensions past r pass through.

    q'[i]       = q[i] * cos - q[i + r/2] * sin
    q'[i + r/2] = q[i + r/2] * cos + q[i] * sin

Layout   q          float    [T, H, D]     last axis contiguous; updated in place
         k          float    [T, G, D]     last axis contiguous; updated in place
         positions  int64    [T]
         table      float32  [M, 2, r/2]   cosines, then sines, of each position below M (make_rope_table)
Traffic  2 * (H + G) * r * itemsize per token, and one row of the table"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op


def make_rope_table(frequencies: Sequence[float] | Tensor, num_positions: int, *, scale: float = 1.0) -> Tensor:
    """float32 [M, 2, r/2]: cos and sin of position * frequency, times `scale` (YaRN's attention factor).

    Angles are taken in float64: at position 100,000 a float32 angle is off by a hundredth of a radian.
    """
    inverse = torch.as_tensor(frequencies, dtype=torch.float64)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * inverse  # [M, r/2]
    return torch.stack([angles.cos(), angles.sin()], dim=1).mul_(scale).float().contiguous()


def rope_reference(q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> None:
    """The definition, in float32."""
    cos, sin = table[positions].unsqueeze(2).unbind(1)  # each [T, 1, r/2]
    for x in (q, k):
        half = table.shape[2]
        a, b = x[..., :half].float(), x[..., half : 2 * half].float()
        low, high = a * cos - b * sin, b * cos + a * sin  # both before either is stored: in float32, a and b are views
        x[..., :half], x[..., half : 2 * half] = low.to(x.dtype), high.to(x.dtype)


@triton.jit
def _rope_kernel(
    q_ptr, k_ptr, positions_ptr, table_ptr, q_stride_t, q_stride_h, k_stride_t, k_stride_h, H, HALF,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < HALF
    position = tl.load(positions_ptr + token)
    cos = tl.load(table_ptr + position * 2 * HALF + i, mask=inside, other=0.0)
    sin = tl.load(table_ptr + position * 2 * HALF + HALF + i, mask=inside, other=0.0)
    if head < H:
        base = q_ptr + token * q_stride_t + head * q_stride_h
    else:
        base = k_ptr + token * k_stride_t + (head - H) * k_stride_h
    a = tl.load(base + i, mask=inside, other=0.0)
    b = tl.load(base + HALF + i, mask=inside, other=0.0)
    a32 = a.to(tl.float32)
    b32 = b.to(tl.float32)
    tl.store(base + i, (a32 * cos - b32 * sin).to(a.dtype), mask=inside)
    tl.store(base + HALF + i, (b32 * cos + a32 * sin).to(a.dtype), mask=inside)


def rope_triton(q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> None:
    T, H, _ = q.shape
    check_tensor("positions", positions, dtype=torch.int64, shape=(T,), device=q.device)
    check_tensor("table", table, dtype=torch.float32, shape=(None, 2, None), device=q.device)
    check_last_axis_contiguous("q", q)
    check_last_axis_contiguous("k", k)
    half = table.shape[2]
    if T > 0:
        _rope_kernel[(T, H + k.shape[1])](
            q, k, positions, table, q.stride(0), q.stride(1), k.stride(0), k.stride(1), H, half,
            BLOCK=triton.next_power_of_2(half),
        )  # fmt: skip


rope = Op("rope", reference=rope_reference, torch=rope_reference, triton=rope_triton)


def make_inputs(
    T: int, H: int, G: int, D: int, dtype: torch.dtype, device: str, *, rotary: int | None = None, pad: int = 0
) -> dict[str, Tensor]:
    """For test and benchmark; the same at each call. q and k are views of one fused projection, so strided."""
    g = torch.Generator(device).manual_seed(0)
    fused = torch.randn(T, (H + G) * D + pad, generator=g, device=device).to(dtype)
    half = (rotary or D) // 2
    table = make_rope_table([10_000.0 ** (-i / half) for i in range(half)], 4 * T + 8).to(device)
    positions = torch.randint(0, 4 * T + 8, (T,), generator=g, device=device)
    q, k = fused[:, : H * D].view(T, H, D), fused[:, H * D : (H + G) * D].view(T, G, D)
    return dict(q=q, k=k, positions=positions, table=table)
