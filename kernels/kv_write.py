"""Write new keys and values into their slots of the paged pool; optionally rotate the keys (and queries) on the way.

Layout   key, value    float  [T, G, D]      last axis contiguous
         key_pages     float  [N, S, G, D]   contiguous; value_pages the same
         slots         int64  [T]            page * S + offset, each once; -1 is skipped (a CUDA graph's padding)
Traffic  4 * G * D * itemsize per token; one program per (token, head)

`rope_kv_write` is the same with kernels/rope.py fused in front: one launch in place of two, and the rotated key is
never written anywhere but in its page."""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op
from ramet.kernels.rope import rope_reference


def kv_write_reference(key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, slots: Tensor) -> None:
    """The definition."""
    N, S, G, D = key_pages.shape
    kept = slots >= 0
    for new, pages in ((key, key_pages), (value, value_pages)):
        pages.view(N * S, G, D)[slots[kept]] = new[kept].to(pages.dtype)


def kv_write_torch(key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, slots: Tensor) -> None:
    """index_copy_: no boolean gather. Every slot must be >= 0."""
    N, S, G, D = key_pages.shape
    key_pages.view(N * S, G, D).index_copy_(0, slots, key.to(key_pages.dtype))
    value_pages.view(N * S, G, D).index_copy_(0, slots, value.to(value_pages.dtype))


def rope_kv_write_reference(
    q: Tensor, key: Tensor, value: Tensor, positions: Tensor, table: Tensor, key_pages: Tensor, value_pages: Tensor,
    slots: Tensor,
) -> None:  # fmt: skip
    """Rotate q in place, and the keys on their way into the pages; `key` itself may be left rotated or not."""
    rotated = key.clone()
    rope_reference(q, rotated, positions, table)
    kv_write_reference(rotated, value, key_pages, value_pages, slots)


def rope_kv_write_torch(
    q: Tensor, key: Tensor, value: Tensor, positions: Tensor, table: Tensor, key_pages: Tensor, value_pages: Tensor,
    slots: Tensor,
) -> None:  # fmt: skip
    rope_reference(q, key, positions, table)
    kv_write_torch(key, value, key_pages, value_pages, slots)


@triton.jit
def _kv_write_kernel(
    key_ptr, value_ptr, key_pages_ptr, value_pages_ptr, slots_ptr, k_stride_t, k_stride_h, v_stride_t, v_stride_h,
    G, D, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots_ptr + token)
    i = tl.arange(0, BLOCK)
    inside = i < D
    if slot >= 0:
        target = (slot * G + head) * D + i
        key = tl.load(key_ptr + token * k_stride_t + head * k_stride_h + i, mask=inside)
        tl.store(key_pages_ptr + target, key.to(key_pages_ptr.dtype.element_ty), mask=inside)
        value = tl.load(value_ptr + token * v_stride_t + head * v_stride_h + i, mask=inside)
        tl.store(value_pages_ptr + target, value.to(value_pages_ptr.dtype.element_ty), mask=inside)


def kv_write_triton(key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, slots: Tensor) -> None:
    T, G, D = key.shape
    _check(key, value, key_pages, value_pages, slots)
    if T > 0:
        _kv_write_kernel[(T, G)](
            key, value, key_pages, value_pages, slots, key.stride(0), key.stride(1), value.stride(0), value.stride(1),
            G, D, BLOCK=triton.next_power_of_2(D),
        )  # fmt: skip


@triton.jit
def _rope_kv_write_kernel(
    q_ptr, key_ptr, value_ptr, positions_ptr, table_ptr, key_pages_ptr, value_pages_ptr, slots_ptr,
    q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, H, G, D, HALF, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)  # [0, H) queries, [H, H + G) keys and values
    i = tl.arange(0, BLOCK)
    rotary = i < 2 * HALF
    low = i < HALF
    position = tl.load(positions_ptr + token)
    frequency = tl.where(low, i, i - HALF)
    cos = tl.load(table_ptr + position * 2 * HALF + frequency, mask=rotary, other=1.0)  # past r: unchanged
    sin = tl.load(table_ptr + position * 2 * HALF + HALF + frequency, mask=rotary, other=0.0)
    partner = tl.where(low, i + HALF, i - HALF)
    sign = tl.where(low, -1.0, 1.0)
    if head < H:
        base = q_ptr + token * q_stride_t + head * q_stride_h
        x = tl.load(base + i, mask=i < D, other=0.0)
        y = tl.load(base + partner, mask=rotary, other=0.0).to(tl.float32)
        tl.debug_barrier()  # every lane has read before any writes: the row is rotated in place
        tl.store(base + i, (x.to(tl.float32) * cos + sign * y * sin).to(x.dtype), mask=i < D)
    else:
        group = head - H
        slot = tl.load(slots_ptr + token)
        inside = i < D
        if slot >= 0:
            base = key_ptr + token * k_stride_t + group * k_stride_h
            x = tl.load(base + i, mask=inside, other=0.0).to(tl.float32)
            y = tl.load(base + partner, mask=rotary, other=0.0).to(tl.float32)
            target = (slot * G + group) * D + i
            rotated = (x * cos + sign * y * sin).to(key_ptr.dtype.element_ty)  # rounded as the unfused form rounds
            tl.store(key_pages_ptr + target, rotated.to(key_pages_ptr.dtype.element_ty), mask=inside)
            value = tl.load(value_ptr + token * v_stride_t + group * v_stride_h + i, mask=inside)
            tl.store(value_pages_ptr + target, value.to(value_pages_ptr.dtype.element_ty), mask=inside)


def rope_kv_write_triton(
    q: Tensor, key: Tensor, value: Tensor, positions: Tensor, table: Tensor, key_pages: Tensor, value_pages: Tensor,
    slots: Tensor,
) -> None:  # fmt: skip
    T, H, D = q.shape
    G = key.shape[1]
    _check(key, value, key_pages, value_pages, slots)
    check_last_axis_contiguous("q", q)
    check_tensor("table", table, dtype=torch.float32, shape=(None, 2, None), device=q.device)
    if T > 0:
        _rope_kv_write_kernel[(T, H + G)](
            q, key, value, positions, table, key_pages, value_pages, slots, q.stride(0), q.stride(1),
            key.stride(0), key.stride(1), value.stride(0), value.stride(1), H, G, D, table.shape[2],
            BLOCK=triton.next_power_of_2(D),
        )  # fmt: skip


def _check(key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, slots: Tensor) -> None:
    T, G, D = key.shape
    check_tensor("value", value, shape=(T, G, D), device=key.device)
    check_tensor("key_pages", key_pages, shape=(None, None, G, D), device=key.device)
    check_tensor("value_pages", value_pages, dtype=key_pages.dtype, shape=key_pages.shape, device=key.device)
    check_tensor("slots", slots, dtype=torch.int64, shape=(T,), device=key.device)
    check_last_axis_contiguous("key", key)
    check_last_axis_contiguous("value", value)


kv_write = Op("kv_write", reference=kv_write_reference, torch=kv_write_torch, triton=kv_write_triton)
rope_kv_write = Op(
    "rope_kv_write", reference=rope_kv_write_reference, torch=rope_kv_write_torch, triton=rope_kv_write_triton
)


def make_inputs(
    T: int, H: int, G: int, D: int, S: int, dtype: torch.dtype, device: str, *, pad: int = 0
) -> dict[str, Tensor]:
    """For test and benchmark; the same at each call. Strided keys and values, scattered slots."""
    from ramet.kernels.rope import make_inputs as rope_inputs

    inputs = rope_inputs(T, H, G, D, dtype, device, pad=pad)
    g = torch.Generator(device).manual_seed(1)
    N = -(-T // S) + 2
    value = torch.randn(T, G, D + pad, generator=g, device=device).to(dtype)[..., :D]
    key_pages = torch.full((N, S, G, D), float("nan"), dtype=dtype, device=device)
    slots = torch.randperm(N * S, generator=g, device=device)[:T]
    return dict(
        q=inputs["q"], key=inputs["k"], value=value, positions=inputs["positions"], table=inputs["table"],
        key_pages=key_pages, value_pages=key_pages.clone(), slots=slots,
    )  # fmt: skip
