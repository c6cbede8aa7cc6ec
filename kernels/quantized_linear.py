"""Products with weights of 4 or 8 bits, which are expanded on their way to the multiplier and never in memory.

    y[t, n] = sum_k x[t, k] * w[n, k]        w[n, k] = scale[n, b] * code[n, k] + minimum[n, b],  b = k // group

This is GGUF's Q4_1 and Q4_0 (group 32, minimum = -8 * scale), Q8_0 (no minimum, signed codes), and the groups of
GPTQ and AWQ
(their zero point z is minimum = -z * scale).

Layout   x         float     [T, K]             last axis contiguous
         codes     uint8     [N, K / 2]         4 bits: input k in byte k // 2, even k in the low nibble
                   int8      [N, K]             8 bits
         scales    float16/32  [N, K / group]
         minima    float16/32  [N, K / group], or None: 0
         returns   float     [T, N]             x's dtype; sums in float32
Traffic  N * K * (bits / 8 + 4 / group) of weights, once per BLOCK_T rows"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op
from ramet.kernels.tuning import chosen


def expand_weights(codes: Tensor, scales: Tensor, minima: Tensor | None) -> Tensor:
    """float32 [N, K]: the numbers that codes stand for."""
    numbers = unpack_nibbles(codes) if codes.dtype == torch.uint8 else codes
    group = numbers.shape[1] // scales.shape[1]
    expanded = numbers.float().view(*scales.shape, group) * scales.float()[..., None]
    if minima is not None:
        expanded = expanded + minima.float()[..., None]
    return expanded.flatten(1)


def unpack_nibbles(codes: Tensor) -> Tensor:
    """uint8 [N, K / 2] -> uint8 [N, K]."""
    return torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)


def pack_nibbles(numbers: Tensor) -> Tensor:
    """uint8 [N, K] below 16 -> uint8 [N, K / 2]."""
    return numbers[:, 0::2] | (numbers[:, 1::2] << 4)


def quantized_linear_reference(x: Tensor, codes: Tensor, scales: Tensor, minima: Tensor | None = None) -> Tensor:
    """The definition."""
    return (x.float() @ expand_weights(codes, scales, minima).T).to(x.dtype)


@triton.jit
def _linear_kernel(
    x_ptr, codes_ptr, scales_ptr, minima_ptr, out_ptr, T, N, K, x_stride, group,
    FOUR_BITS: tl.constexpr, HAS_MINIMA: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row64 = row.to(tl.int64)
    column64 = column.to(tl.int64)
    num_groups = K // group
    sums = tl.zeros([BLOCK_T, BLOCK_N], dtype=tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_ptr + row64[:, None] * x_stride + k[None, :], mask=(row < T)[:, None] & (k < K)[None, :], other=0.0
        )
        inside = (k < K)[:, None] & (column < N)[None, :]
        if FOUR_BITS:
            byte = tl.load(codes_ptr + column64[None, :] * (K // 2) + k[:, None] // 2, mask=inside, other=0)
            code = (byte.to(tl.int32) >> (k[:, None] % 2 * 4)) & 15
        else:
            code = tl.load(codes_ptr + column64[None, :] * K + k[:, None], mask=inside, other=0)
        place = column64[None, :] * num_groups + k[:, None] // group
        w = code.to(tl.float32) * tl.load(scales_ptr + place, mask=inside, other=0.0).to(tl.float32)
        if HAS_MINIMA:
            w = w + tl.load(minima_ptr + place, mask=inside, other=0.0).to(tl.float32)
        sums += tl.dot(x, w.to(x.dtype), input_precision="ieee")
    out = out_ptr + row64[:, None] * N + column[None, :]
    tl.store(out, sums.to(out_ptr.dtype.element_ty), mask=(row < T)[:, None] & (column < N)[None, :])


BLOCKS = ((16, 64, 64), (16, 32, 128), (16, 128, 64), (16, 64, 128), (32, 64, 64))
"""Rows, columns and depth of a program's tile. The first is taken where none was measured."""


def quantized_linear_triton(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    minima: Tensor | None = None,
    *,
    blocks: tuple[int, int, int] | None = None,
) -> Tensor:
    """Sums over K run in one order whatever the number of rows. `blocks`: one of BLOCKS; None: tuning.py chooses."""
    T, K = x.shape
    N = codes.shape[0]
    four_bits = codes.dtype == torch.uint8
    check_tensor(
        "codes", codes, dtype=(torch.uint8, torch.int8), shape=(N, K // 2 if four_bits else K), device=x.device
    )
    check_tensor("scales", scales, shape=(N, None), device=x.device)
    check_last_axis_contiguous("x", x)
    if minima is not None:
        check_tensor("minima", minima, shape=scales.shape, device=x.device)
    out = torch.empty((T, N), dtype=x.dtype, device=x.device)
    if T == 0:
        return out

    def run(blocks: tuple[int, ...]) -> None:
        block_t, block_n, block_k = blocks
        _linear_kernel[(triton.cdiv(T, block_t), triton.cdiv(N, block_n))](
            x, codes, scales, minima if minima is not None else scales, out, T, N, K, x.stride(0), K // scales.shape[1],
            FOUR_BITS=four_bits, HAS_MINIMA=minima is not None, BLOCK_T=block_t, BLOCK_N=block_n, BLOCK_K=block_k,
        )  # fmt: skip

    run(blocks or chosen("quantized_linear", (N, K, 4 if four_bits else 8), BLOCKS, run, x.device))
    return out


quantized_linear = Op(
    "quantized_linear",
    reference=quantized_linear_reference,
    torch=quantized_linear_reference,
    triton=quantized_linear_triton,
)


def make_inputs(
    T: int, N: int, K: int, bits: int, group: int, dtype: torch.dtype, device: str, *, minima: bool = True, pad: int = 0
) -> dict[str, Tensor]:
    """For test and benchmark; the same at each call."""
    g = torch.Generator(device).manual_seed(0)
    x = torch.randn(T, K + pad, generator=g, device=device).to(dtype)[:, :K]
    scales = (torch.rand(N, K // group, generator=g, device=device) * 0.02 + 0.01).half()
    if bits == 4:
        codes = torch.randint(0, 256, (N, K // 2), generator=g, device=device, dtype=torch.uint8)
    else:
        codes = torch.randint(-127, 128, (N, K), generator=g, device=device, dtype=torch.int8)
    inputs = dict(x=x, codes=codes, scales=scales)
    return inputs | ({"minima": -8 * scales} if minima else {})
