"""Gated activations of a feed-forward block: SwiGLU and GeGLU.

    swiglu  y = silu(gate) * up             silu(v) = v / (1 + exp(-v))
    geglu   y = gelu_tanh(gate) * up        the tanh approximation, as Gemma uses it

Layout   gate_up  float  [T, 2F]   gate in the first F columns, up in the last F; last axis contiguous
         returns  float  [T, F]    same dtype; computed in float32
Traffic  3 * F * itemsize per row; one program per (row, BLOCK columns)"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous
from ramet.kernels.registry import Op


def swiglu_reference(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def geglu_reference(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)


def swiglu_torch(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)


def geglu_torch(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh").mul_(up)


@triton.jit
def _gated_kernel(x_ptr, out_ptr, F, x_stride, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < F
    gate = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * x_stride + F + column, mask=inside, other=0.0)
    if GELU:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        # gelu_tanh(v) = v * sigmoid(2 * inner): one exponential, and no tanh for the backend to lack
        activated = gate * tl.sigmoid(2.0 * inner)
    else:
        activated = gate * tl.sigmoid(gate)
    tl.store(out_ptr + row * F + column, (activated * up.to(tl.float32)).to(up.dtype), mask=inside)


def _gated_triton(gate_up: Tensor, gelu: bool, block: int = 1024) -> Tensor:
    check_last_axis_contiguous("gate_up", gate_up)
    T, F = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((T, F), dtype=gate_up.dtype, device=gate_up.device)
    if T > 0:
        block = min(block, triton.next_power_of_2(F))
        _gated_kernel[(T, triton.cdiv(F, block))](gate_up, out, F, gate_up.stride(0), GELU=gelu, BLOCK=block)
    return out


def swiglu_triton(gate_up: Tensor) -> Tensor:
    return _gated_triton(gate_up, gelu=False)


def geglu_triton(gate_up: Tensor) -> Tensor:
    return _gated_triton(gate_up, gelu=True)


swiglu = Op("swiglu", reference=swiglu_reference, torch=swiglu_torch, triton=swiglu_triton)
geglu = Op("geglu", reference=geglu_reference, torch=geglu_torch, triton=geglu_triton)


def make_inputs(T: int, F: int, dtype: torch.dtype, device: str, *, pad: int = 0) -> dict[str, Tensor]:
    """For test and benchmark; the same at each call. `pad` makes the row stride differ from the row length."""
    g = torch.Generator(device).manual_seed(0)
    return dict(gate_up=torch.randn(T, 2 * F + pad, generator=g, device=device).to(dtype)[:, : 2 * F])
