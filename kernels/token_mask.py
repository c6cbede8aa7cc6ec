"""Set logits to -inf where the packed token mask has a 0 bit.

Layout   logits     float  [B, V]             any row stride, last axis contiguous
         mask       int32  [M, ceil(V / 32)]  bit j of word w, lowest first, is token 32 * w + j
         rows       int32  [R]                the batch rows that a grammar governs, each once
         mask_rows  int32  [R]                where the mask of each lies; None: at the batch row's own number
Traffic  per row, V / 8 bytes read and at most V * itemsize written; one program per (row, BLOCK tokens)"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op


def apply_token_mask_reference(logits: Tensor, mask: Tensor, rows: Tensor, mask_rows: Tensor | None = None) -> None:
    """The definition."""
    own = (rows if mask_rows is None else mask_rows).long()
    rows = rows.long()
    bits = (mask[own, :, None] >> torch.arange(32, dtype=torch.int32, device=mask.device)) & 1  # [R, W, 32]
    logits[rows] = logits[rows].masked_fill(bits.flatten(1)[:, : logits.shape[1]] == 0, float("-inf"))  # [R, V]


@triton.jit
def _mask_kernel(logits_ptr, mask_ptr, rows_ptr, mask_rows_ptr, V, logits_stride, mask_stride, BLOCK: tl.constexpr):
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)  # int64 before it meets a stride: B * V can pass 2**31
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(mask_rows_ptr + tl.program_id(0)).to(tl.int64)
    word = tl.load(mask_ptr + own * mask_stride + token // 32, mask=token < V, other=-1)  # past V: allowed
    denied = ((word >> (token % 32)) & 1) == 0
    tl.store(logits_ptr + row * logits_stride + token, float("-inf"), mask=denied)


def apply_token_mask_triton(
    logits: Tensor, mask: Tensor, rows: Tensor, mask_rows: Tensor | None = None, *, block: int = 1024
) -> None:
    B, V = logits.shape
    num_masks = B if mask_rows is None else len(mask)
    check_tensor("mask", mask, dtype=torch.int32, shape=(num_masks, -(-V // 32)), device=logits.device)
    check_last_axis_contiguous("logits", logits)
    if len(rows) > 0:
        _mask_kernel[(len(rows), triton.cdiv(V, block))](
            logits,
            mask,
            rows,
            rows if mask_rows is None else mask_rows,
            V,
            logits.stride(0),
            mask.stride(0),
            BLOCK=block,
        )


apply_token_mask = Op(
    "apply_token_mask",
    reference=apply_token_mask_reference,
    torch=apply_token_mask_reference,
    triton=apply_token_mask_triton,
)


def make_inputs(B: int, V: int, dtype: torch.dtype, device: str, *, pad: int = 0) -> dict[str, Tensor]:
    """For test and benchmark; the same at each call. `pad` makes the row stride differ from the row length."""
    g = torch.Generator(device).manual_seed(0)
    logits = torch.randn(B, V + pad, generator=g, device=device).to(dtype)[:, :V]
    mask = torch.randint(-(2**31), 2**31, (B, -(-V // 32)), generator=g, device=device, dtype=torch.int32)
    return dict(logits=logits, mask=mask, rows=torch.arange(0, B, 2, dtype=torch.int32, device=device))
