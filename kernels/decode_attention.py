"""Decode attention for GPUs: one new token per row, the keys of a row split over programs.

Same mathematics and layout as kernels/attention.py. A row's context is cut at fixed places, every SPLIT keys,
whatever the batch: each program reduces one piece (online softmax), and merge_states joins the pieces in order. So a
row has the
same bits in any batch, and a long row keeps many multiprocessors busy. No host sync and no shape that depends on
lengths:
it can be captured in a CUDA graph (a row of length 0 is padding and gives 0).

Layout   q                float    [R, H, D]     last axis contiguous
         key_pages        float or int8  [N, S, G, D]   value_pages the same
         key_scales       float16  [N, S, G]  where pages are int8 (kv_quantize.py); value_scales the same
         context_lengths  int32    [R]           keys of the row, its new token's included
         page_tables      int32    [R, P]
         returns          float    [R, H, D]     q's dtype
Traffic  2 * length * G * D * itemsize per row, read once for all H / G heads; partial results 4 * H * (D + 1) per
piece"""

import torch
from torch import Tensor

from ramet.kernels._attend import attend_keys
from ramet.kernels._triton import tl, triton
from ramet.kernels.attention import Groups
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.kv_quantize import SCALE_DTYPE
from ramet.kernels.merge_states import merge_states_triton
from ramet.kernels.rotate_heads import rotate_heads_triton

SPLIT = 256
"""Keys per program. A constant: cutting by the batch would change a row's bits with its company."""


@triton.jit
def _decode_kernel(
    q_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, lengths_ptr, tables_ptr, out_ptr, lse_ptr,
    q_stride_t, q_stride_h, table_stride, H, G, D, S, num_pieces, window, scale, soft_cap,
    HAS_CAP: tl.constexpr, INT8: tl.constexpr, HAS_WINDOW: tl.constexpr, SPLIT: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1)
    piece = tl.program_id(2)
    length = tl.load(lengths_ptr + row)
    share = H // G
    i = tl.arange(0, M)
    d = tl.arange(0, BLOCK_D)
    head = g * share + i
    is_head = i < share
    low_key = 0
    if HAS_WINDOW:
        low_key = tl.maximum(0, length - window)
    begin = tl.maximum(piece * SPLIT, low_key // N * N)
    end = tl.minimum(piece * SPLIT + SPLIT, length)
    place = row * q_stride_t + head[:, None] * q_stride_h + d[None, :]
    q = tl.load(q_ptr + place, mask=is_head[:, None] & (d[None, :] < D), other=0.0)
    low = tl.zeros([M], dtype=tl.int32) + low_key
    high = tl.zeros([M], dtype=tl.int32) + length
    m, l, acc = attend_keys(  # noqa: E741
        q, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, tables_ptr + row * table_stride, g, G, D, S,
        begin, end, low, high, 0, key_ptr, low, key_ptr, low, window, scale, soft_cap,
        HAS_CAP, INT8, False, HAS_WINDOW, M, N, BLOCK_D,
    )  # fmt: skip
    divisor = tl.where(l > 0, l, 1.0)
    at = (row * num_pieces + piece) * H + head
    tl.store(lse_ptr + at, tl.where(l > 0, m + tl.log(divisor), -float("inf")), mask=is_head)
    tl.store(out_ptr + at[:, None] * D + d[None, :], acc / divisor[:, None], mask=is_head[:, None] & (d[None, :] < D))


def decode_attention_triton(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    context_lengths: Tensor,
    page_tables: Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    groups: Groups = (),
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    block: int = 32,
) -> Tensor:
    """`block`: keys per turn of the loop. `groups` is not used here: extend_attention reads shared prefixes once."""
    R, H, D = q.shape
    _, S, G, _ = key_pages.shape
    check_pages(q, key_pages, value_pages, key_scales, value_scales)
    check_tensor("context_lengths", context_lengths, dtype=torch.int32, shape=(R,), device=q.device)
    check_tensor("page_tables", page_tables, dtype=torch.int32, shape=(R, None), device=q.device)
    num_pieces = max(1, triton.cdiv(page_tables.shape[1] * S, SPLIT))
    out = torch.empty((R, num_pieces, H, D), dtype=torch.float32, device=q.device)
    lse = torch.empty((R, num_pieces, H), dtype=torch.float32, device=q.device)
    if R == 0:
        return torch.empty_like(q)
    is_int8 = key_scales is not None
    q = rotate_heads_triton(q) if is_int8 else q
    _decode_kernel[(R, G, num_pieces)](
        q, key_pages, value_pages, key_scales if key_scales is not None else q,
        value_scales if value_scales is not None else q, context_lengths, page_tables, out, lse,
        q.stride(0), q.stride(1), page_tables.stride(0), H, G, D, S, num_pieces, window or 0, scale, soft_cap or 0.0,
        HAS_CAP=soft_cap is not None, INT8=is_int8, HAS_WINDOW=window is not None, SPLIT=SPLIT,
        M=max(16, triton.next_power_of_2(H // G)), N=block, BLOCK_D=max(16, triton.next_power_of_2(D)),
    )  # fmt: skip
    merged = merge_states_triton(out, lse)[0]
    return (rotate_heads_triton(merged) if is_int8 else merged).to(q.dtype)


def check_pages(
    q: Tensor, key_pages: Tensor, value_pages: Tensor, key_scales: Tensor | None, value_scales: Tensor | None
) -> None:
    """Pages fit the queries; int8 pages come with scales."""
    D = q.shape[-1]
    check_last_axis_contiguous("q", q)
    check_tensor("key_pages", key_pages, shape=(None, None, None, D), device=q.device)
    check_tensor("value_pages", value_pages, dtype=key_pages.dtype, shape=key_pages.shape, device=q.device)
    if key_pages.dtype == torch.int8:
        assert key_scales is not None and value_scales is not None, "int8 pages need scales"
        for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
            check_tensor(name, scales, dtype=SCALE_DTYPE, shape=key_pages.shape[:3], device=q.device)
