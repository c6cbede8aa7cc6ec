"""Write new keys and values as int8, rotated, with one float16 scale per token and head: 0.52 of bfloat16's bytes.

    y = x W  (rotate_heads.py)     scale = half(max |y| / 127)     code = round(y / scale)     y is read as code * scale

The error that this makes in the model, as KL divergence from float32 keys and values, was 1.8e-4; with a scale per 32
unrotated channels (0.56 of the bytes) 4.2e-4, with one per unrotated head 7.5e-4 (docs/LOG.md).

Layout   key, value                float    [T, G, D]     last axis contiguous
         key_pages, value_pages    int8     [N, S, G, D]  contiguous
         key_scales, value_scales  float16  [N, S, G]
         slots                     int64    [T]           page * S + offset; -1 is skipped
Traffic  per token 2 * G * (D * (itemsize + 1) + 2); with Triton, where the rotation is a kernel of its own, 16 * G * D
more; one program per (token, head)"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op
from ramet.kernels.rotate_heads import rotate_heads_reference, rotate_heads_triton

SCALE_DTYPE = torch.float16


def kv_write_int8_reference(
    key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, key_scales: Tensor, value_scales: Tensor,
    slots: Tensor,
) -> None:  # fmt: skip
    """The definition."""
    kept = slots >= 0
    for new, pages, scales in ((key, key_pages, key_scales), (value, value_pages, value_scales)):
        numbers = rotate_heads_reference(new[kept].float())  # [T, G, D]
        scale = (numbers.abs().amax(-1) / 127).to(SCALE_DTYPE)  # [T, G]
        # a scale that was rounded down leaves a largest code of up to 127.06; one that was rounded to 0, nothing
        inverse = torch.where(scale > 0, 1 / scale.float(), 0.0)
        codes = (numbers * inverse[..., None]).round().clamp(-127, 127)
        pages.view(-1, *pages.shape[2:])[slots[kept]] = codes.to(torch.int8)
        scales.view(-1, *scales.shape[2:])[slots[kept]] = scale


def read_int8(pages: Tensor, scales: Tensor) -> Tensor:
    """float32 [..., D]: int8 [..., D] times float16 [...]; still rotated."""
    return pages.float() * scales.float()[..., None]


@triton.jit
def _quantize_row(source, pages, scales, row, D, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(source + i, mask=i < D, other=0.0)
    half = (tl.max(tl.abs(x), axis=0) / 127).to(tl.float16)
    scale = half.to(tl.float32)
    scaled = tl.where(scale > 0, x / tl.where(scale > 0, scale, 1.0), 0.0)
    # half away from zero; where it differs from half to even, by one code at a tie
    code = tl.minimum(tl.floor(tl.abs(scaled) + 0.5), 127.0) * tl.where(scaled < 0, -1.0, 1.0)
    tl.store(pages + row * D + i, code.to(tl.int8), mask=i < D)
    tl.store(scales + row, half)


@triton.jit
def _write_int8_kernel(
    key_ptr, value_ptr, key_pages_ptr, value_pages_ptr, key_scales_ptr, value_scales_ptr, slots_ptr, G, D,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        row = slot * G + head
        source = (token * G + head) * D
        _quantize_row(key_ptr + source, key_pages_ptr, key_scales_ptr, row, D, BLOCK)
        _quantize_row(value_ptr + source, value_pages_ptr, value_scales_ptr, row, D, BLOCK)


def kv_write_int8_triton(
    key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, key_scales: Tensor, value_scales: Tensor,
    slots: Tensor,
) -> None:  # fmt: skip
    T, G, D = key.shape
    for name, pages in (("key_pages", key_pages), ("value_pages", value_pages)):
        check_tensor(name, pages, dtype=torch.int8, shape=(None, None, G, D), device=key.device)
    for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
        check_tensor(name, scales, dtype=SCALE_DTYPE, shape=key_pages.shape[:3], device=key.device)
    check_tensor("slots", slots, dtype=torch.int64, shape=(T,), device=key.device)
    check_last_axis_contiguous("key", key)
    check_last_axis_contiguous("value", value)
    if T > 0:
        turned = [rotate_heads_triton(new.float()) for new in (key, value)]
        _write_int8_kernel[(T, G)](
            *turned, key_pages, value_pages, key_scales, value_scales, slots, G, D, BLOCK=triton.next_power_of_2(D)
        )


kv_write_int8 = Op(
    "kv_write_int8", reference=kv_write_int8_reference, torch=kv_write_int8_reference, triton=kv_write_int8_triton
)
