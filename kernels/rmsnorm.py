"""Root-mean-square norm, with the residual addition before it fused in.

    r = residual + x        where a residual is given; stored back into `residual`
    y = r / sqrt(mean(r^2) + eps) * (offset + weight)

Layout   x         float  [..., d]   last axis contiguous
         residual  float  [..., d]   same shape and dtype as x, or None; updated in place
         weight    float  [d]        any float dtype
         returns   float  [..., d]   x's dtype; the sum of squares is taken in float32
Traffic  2 (4 with residual) * d * itemsize per row; one program per row"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op


def rms_norm_reference(
    x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None, offset: float = 0.0
) -> Tensor:
    """The definition."""
    if residual is not None:
        residual += x
        x = residual
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * (weight.float() + offset)).to(x.dtype)


def rms_norm_torch(
    x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None, offset: float = 0.0
) -> Tensor:
    """torch's fused norm; the sum of squares of one row never depends on the other rows."""
    if residual is not None:
        residual += x
        x = residual
    if offset == 0.0 and weight.dtype == x.dtype:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
    normed = torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), weight.float() + offset, eps)
    return normed.to(x.dtype)


@triton.jit
def _rms_norm_kernel(
    x_ptr, weight_ptr, residual_ptr, out_ptr, d, x_stride, residual_stride, eps, offset,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < d
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        place = residual_ptr + row * residual_stride + column
        # the sum is rounded to the residual's dtype before it is normed, as the reference does
        x = (tl.load(place, mask=inside, other=0.0).to(tl.float32) + x.to(tl.float32)).to(x.dtype)
        tl.store(place, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / d + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(out_ptr + row * d + column, (wide * scale * weight).to(x.dtype), mask=inside)


def rms_norm_triton(
    x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None, offset: float = 0.0
) -> Tensor:
    """One program holds one row in registers: read once, written once."""
    d = x.shape[-1]
    check_tensor("weight", weight, shape=(d,), device=x.device)
    check_last_axis_contiguous("x", x)
    rows = x.reshape(-1, d)
    out = torch.empty((rows.shape[0], d), dtype=x.dtype, device=x.device)
    flat = None
    if residual is not None:
        check_tensor("residual", residual, dtype=x.dtype, shape=x.shape, device=x.device)
        flat = (
            residual.flatten(0, -2) if residual.dim() > 2 else residual.view(-1, d) if residual.dim() == 1 else residual
        )
    if rows.shape[0] > 0:
        _rms_norm_kernel[(rows.shape[0],)](
            rows, weight, flat if flat is not None else rows, out, d,
            rows.stride(0), flat.stride(0) if flat is not None else 0, eps, offset,
            HAS_RESIDUAL=flat is not None, BLOCK=triton.next_power_of_2(d),
        )  # fmt: skip
    return out.view(x.shape)


rms_norm = Op("rms_norm", reference=rms_norm_reference, torch=rms_norm_torch, triton=rms_norm_triton)


def make_inputs(T: int, d: int, dtype: torch.dtype, device: str, *, pad: int = 0) -> dict[str, Tensor]:
    """For test and benchmark; the same at each call. `pad` makes the row stride differ from the row length."""
    g = torch.Generator(device).manual_seed(0)
    x, residual = (torch.randn(T, d + pad, generator=g, device=device).to(dtype)[:, :d] for _ in range(2))
    weight = torch.randn(d, generator=g, device=device).to(dtype)
    return dict(x=x, weight=weight, residual=residual)
