"""Write new keys and values as int8, each 32 channels with a scale of their own: little more than half of bfloat16's
bytes.

    scale = max |x| / 127        code = round(x / scale)        x is read back as code * scale

One scale for a whole head of 64 changed greedy tokens about twice as often (docs/LOG.md).

Layout   key, value                float    [T, G, D]     last axis contiguous
         key_pages, value_pages    int8     [N, S, G, D]  contiguous
         key_scales, value_scales  float32  [N, S, G, D / 32]
         slots                     int64    [T]           page * S + offset; -1 is skipped
Traffic  per token 2 * G * D * (itemsize + 1 + 1 / 8); one program per (token, head)"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op

SCALE_GROUP = 32
"""Channels of a head that share a scale; head sizes are multiples of it."""


def kv_write_int8_reference(
    key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, key_scales: Tensor, value_scales: Tensor,
    slots: Tensor,
) -> None:  # fmt: skip
    """The definition."""
    kept = slots >= 0
    for new, pages, scales in ((key, key_pages, key_scales), (value, value_pages, value_scales)):
        numbers = new[kept].float().unflatten(-1, (-1, SCALE_GROUP))  # [T, G, D / 32, 32]
        scale = numbers.abs().amax(-1) / 127  # [T, G, D / 32]
        codes = (numbers / scale.clamp_min(1e-30)[..., None]).round().clamp(-127, 127)
        pages.view(-1, *pages.shape[2:])[slots[kept]] = codes.flatten(-2).to(torch.int8)
        scales.view(-1, *scales.shape[2:])[slots[kept]] = scale


@triton.jit
def _quantize_row(source, pages, scales, row, D, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    groups = tl.arange(0, BLOCK // GROUP)
    x = tl.load(source + i, mask=i < D, other=0.0).to(tl.float32)
    grouped = tl.reshape(x, [BLOCK // GROUP, GROUP])
    scale = tl.max(tl.abs(grouped), axis=1) / 127
    scaled = tl.reshape(grouped / tl.maximum(scale, 1e-30)[:, None], [BLOCK])
    code = tl.floor(
        tl.abs(scaled) + 0.5
    )  # half away from zero; where it differs from half to even, by one code at a tie
    code = tl.minimum(code, 127.0) * tl.where(scaled < 0, -1.0, 1.0)
    tl.store(pages + row * D + i, code.to(tl.int8), mask=i < D)
    tl.store(scales + row * (D // GROUP) + groups, scale, mask=groups < D // GROUP)


@triton.jit
def _write_int8_kernel(
    key_ptr, value_ptr, key_pages_ptr, value_pages_ptr, key_scales_ptr, value_scales_ptr, slots_ptr,
    k_stride_t, k_stride_h, v_stride_t, v_stride_h, G, D, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        row = slot * G + head
        _quantize_row(
            key_ptr + token * k_stride_t + head * k_stride_h, key_pages_ptr, key_scales_ptr, row, D, GROUP, BLOCK
        )
        _quantize_row(
            value_ptr + token * v_stride_t + head * v_stride_h, value_pages_ptr, value_scales_ptr, row, D, GROUP, BLOCK
        )


def kv_write_int8_triton(
    key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, key_scales: Tensor, value_scales: Tensor,
    slots: Tensor,
) -> None:  # fmt: skip
    T, G, D = key.shape
    for name, pages in (("key_pages", key_pages), ("value_pages", value_pages)):
        check_tensor(name, pages, dtype=torch.int8, shape=(None, None, G, D), device=key.device)
    for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
        check_tensor(
            name, scales, dtype=torch.float32, shape=(*key_pages.shape[:3], D // SCALE_GROUP), device=key.device
        )
    check_tensor("slots", slots, dtype=torch.int64, shape=(T,), device=key.device)
    check_last_axis_contiguous("key", key)
    check_last_axis_contiguous("value", value)
    if T > 0:
        _write_int8_kernel[(T, G)](
            key, value, key_pages, value_pages, key_scales, value_scales, slots, key.stride(0), key.stride(1),
            value.stride(0), value.stride(1), G, D, GROUP=SCALE_GROUP, BLOCK=triton.next_power_of_2(D),
        )  # fmt: skip


kv_write_int8 = Op(
    "kv_write_int8", reference=kv_write_int8_reference, torch=kv_write_int8_reference, triton=kv_write_int8_triton
)
