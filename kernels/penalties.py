"""Penalties on logits, in place.

    seen in prompt or output   logit / r where positive, logit * r where negative         r repetition penalty
    in the output c > 0 times  logit - c * f - p                                          f frequency, p presence

Layout   logits  float    [R, V]             last axis contiguous
         prompt  int32    [R, ceil(V / 32)]  bit j of word w, lowest first: token 32 * w + j is in the prompt
         counts  int32    [R, V]             how often each token is in the output
         repetition, frequency, presence  float32 [R]
Traffic  (2 * itemsize + 4) * V + V / 8 per row; one program per (row, BLOCK tokens)"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op


def apply_penalties_reference(
    logits: Tensor, prompt: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> None:
    """The definition."""
    bits = (prompt[:, :, None] >> torch.arange(32, dtype=torch.int32, device=prompt.device)) & 1  # [R, W, 32]
    seen = (bits.flatten(1)[:, : logits.shape[1]] != 0) | (counts > 0)
    x = logits.float()
    repeated = torch.where(x > 0, x / repetition[:, None], x * repetition[:, None])
    x = torch.where(seen, repeated, x)
    x = x - counts * frequency[:, None] - (counts > 0) * presence[:, None]
    logits.copy_(x)


@triton.jit
def _penalties_kernel(
    logits_ptr, prompt_ptr, counts_ptr, repetition_ptr, frequency_ptr, presence_ptr, V, logits_stride, prompt_stride,
    counts_stride, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < V
    place = logits_ptr + row * logits_stride + token
    logit = tl.load(place, mask=inside, other=0.0)
    count = tl.load(counts_ptr + row * counts_stride + token, mask=inside, other=0)
    word = tl.load(prompt_ptr + row * prompt_stride + token // 32, mask=inside, other=0)
    seen = (((word >> (token % 32)) & 1) != 0) | (count > 0)
    repetition = tl.load(repetition_ptr + row)
    x = logit.to(tl.float32)
    x = tl.where(seen, tl.where(x > 0, x / repetition, x * repetition), x)
    x = x - count * tl.load(frequency_ptr + row) - tl.where(count > 0, tl.load(presence_ptr + row), 0.0)
    tl.store(place, x.to(logit.dtype), mask=inside)


def apply_penalties_triton(
    logits: Tensor, prompt: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor,
    *, block: int = 1024,
) -> None:  # fmt: skip
    R, V = logits.shape
    check_tensor("prompt", prompt, dtype=torch.int32, shape=(R, -(-V // 32)), device=logits.device)
    check_tensor("counts", counts, dtype=torch.int32, shape=(R, V), device=logits.device)
    check_last_axis_contiguous("logits", logits)
    check_last_axis_contiguous("counts", counts)
    if R > 0:
        _penalties_kernel[(R, triton.cdiv(V, block))](
            logits, prompt, counts, repetition, frequency, presence, V, logits.stride(0), prompt.stride(0),
            counts.stride(0), BLOCK=block,
        )  # fmt: skip


apply_penalties = Op(
    "apply_penalties",
    reference=apply_penalties_reference,
    torch=apply_penalties_reference,
    triton=apply_penalties_triton,
)
