"""Turn heads by a fixed rotation, a Walsh-Hadamard transform scaled to keep lengths: y = x W, and x = y W again.

A few channels of a key are much larger than the rest, and a scale for the whole head would be theirs. Rotated, every
channel has a share of them, so that int8 with one scale per token and head loses a quarter as much (docs/LOG.md).
Products of rotated queries and keys are those of the plain ones; a weighted sum of rotated values is turned back once.

    W  block-diagonal, blocks of the largest power of two that divides D:  W[i, j] = (-1)^popcount(i & j) / sqrt(block)

Layout   x        float  [T, H, D]  last axis contiguous
         returns  x's dtype  [T, H, D]  contiguous
Traffic  per head 2 * D * itemsize, and W (4 * D^2 bytes) once a program of ROWS heads"""

import functools

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous
from ramet.kernels.registry import Op

ROWS = 16


@functools.lru_cache(maxsize=16)
def rotation(size: int, device: torch.device) -> Tensor:
    """W: float32 [size, size]; symmetric, and its own inverse."""
    block = size & -size
    one = torch.ones(1, 1)
    while len(one) < block:
        one = torch.cat([torch.cat([one, one], 1), torch.cat([one, -one], 1)])
    whole = torch.zeros(size, size)
    for first in range(0, size, block):
        whole[first : first + block, first : first + block] = one / block**0.5
    return whole.to(device)


def rotate_heads_reference(x: Tensor) -> Tensor:
    """The definition."""
    return (x.float() @ rotation(x.shape[-1], x.device)).to(x.dtype)


@triton.jit
def _rotate_kernel(
    x_ptr, matrix_ptr, out_ptr, stride_t, stride_h, num_heads, total, D, ROWS: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    inside = (row < total)[:, None] & (d < D)[None, :]
    place = (row // num_heads).to(tl.int64) * stride_t + (row % num_heads) * stride_h
    x = tl.load(x_ptr + place[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    matrix = tl.load(matrix_ptr + d[:, None] * D + d[None, :], mask=(d < D)[:, None] & (d < D)[None, :], other=0.0)
    turned = tl.dot(x, matrix, input_precision="ieee")
    tl.store(out_ptr + row.to(tl.int64)[:, None] * D + d[None, :], turned.to(out_ptr.dtype.element_ty), mask=inside)


def rotate_heads_triton(x: Tensor) -> Tensor:
    T, H, D = x.shape
    check_last_axis_contiguous("x", x)
    out = torch.empty((T, H, D), dtype=x.dtype, device=x.device)
    if T > 0:
        _rotate_kernel[(triton.cdiv(T * H, ROWS),)](
            x, rotation(D, x.device), out, x.stride(0), x.stride(1), H, T * H, D,
            ROWS=ROWS, BLOCK_D=max(16, triton.next_power_of_2(D)),
        )  # fmt: skip
    return out


rotate_heads = Op(
    "rotate_heads", reference=rotate_heads_reference, torch=rotate_heads_reference, triton=rotate_heads_triton
)
