"""Join attention over disjoint sets of keys: what each set gave, weighed by how much of the softmax it holds.

    lse   = log(sum_k exp(lse_k))
    out   = sum_k exp(lse_k - lse) * out_k            out_k is already divided by its own sum of weights

A state whose set was empty has lse_k = -inf and counts nothing; if all are empty, out is 0 and lse -inf.

Layout   outputs   float    [T, K, H, D]   K states of each token and head; last axis contiguous
         lse       float32  [T, K, H]      natural logarithm of each state's sum of weights
         counts    int32    [T]            how many of the K states token t has, or None: all
         returns   out float32 [T, H, D], lse float32 [T, H]
Traffic  K * (D * itemsize + 4) read and 4 * D written per token and head; one program per (token, head)
Order    states are added in their order k = 0, 1, ...: the same bits whatever else is in the batch"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op


def merge_states_reference(outputs: Tensor, lse: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The definition."""
    if counts is not None:
        absent = torch.arange(lse.shape[1], device=lse.device)[None, :] >= counts[:, None]  # [T, K]
        lse = lse.masked_fill(absent[:, :, None], float("-inf"))
        outputs = outputs.masked_fill(absent[:, :, None, None], 0.0)
    total = torch.logsumexp(lse, dim=1)  # [T, H]
    weights = torch.exp(lse - total[:, None]).nan_to_num(0.0)  # all empty: exp(-inf + inf)
    return (weights[..., None] * outputs.float()).sum(1), total


@triton.jit
def _merge_kernel(
    outputs_ptr, lse_ptr, counts_ptr, out_ptr, total_ptr, K, H, D, stride_t, stride_k, stride_h,
    HAS_COUNTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < D
    count = K
    if HAS_COUNTS:
        count = tl.load(counts_ptr + token)
    largest = -float("inf")
    total = 0.0
    out = tl.zeros([BLOCK], dtype=tl.float32)
    for k in range(count):
        lse = tl.load(lse_ptr + (token * K + k) * H + head)
        if lse > -float("inf"):
            state = tl.load(
                outputs_ptr + token * stride_t + k * stride_k + head * stride_h + column, mask=inside, other=0.0
            )
            higher = tl.maximum(largest, lse)
            keep = tl.exp(largest - higher)
            weight = tl.exp(lse - higher)
            out = out * keep + state.to(tl.float32) * weight
            total = total * keep + weight
            largest = higher
    divisor = tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + (token * H + head) * D + column, out / divisor, mask=inside)
    tl.store(total_ptr + token * H + head, tl.where(total > 0, largest + tl.log(divisor), -float("inf")))


def merge_states_triton(outputs: Tensor, lse: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A running maximum over the states, so that no exponential overflows."""
    T, K, H, D = outputs.shape
    check_tensor("lse", lse, dtype=torch.float32, shape=(T, K, H), device=outputs.device)
    check_last_axis_contiguous("outputs", outputs)
    out = torch.empty((T, H, D), dtype=torch.float32, device=outputs.device)
    total = torch.empty((T, H), dtype=torch.float32, device=outputs.device)
    if T > 0:
        _merge_kernel[(T, H)](
            outputs, lse.contiguous(), counts if counts is not None else lse, out, total, K, H, D,
            outputs.stride(0), outputs.stride(1), outputs.stride(2), HAS_COUNTS=counts is not None,
            BLOCK=triton.next_power_of_2(D),
        )  # fmt: skip
    return out, total


merge_states = Op(
    "merge_states", reference=merge_states_reference, torch=merge_states_reference, triton=merge_states_triton
)


def make_inputs(T: int, K: int, H: int, D: int, dtype: torch.dtype, device: str, *, pad: int = 0) -> dict[str, Tensor]:
    """For test and benchmark; the same at each call. Token 0 has no state, token 1 only its first; one state is
    empty.
    """
    g = torch.Generator(device).manual_seed(0)
    outputs = torch.randn(T, K, H, D + pad, generator=g, device=device).to(dtype)[..., :D]
    lse = 3 * torch.randn(T, K, H, generator=g, device=device)
    lse[-1, 0] = float("-inf")
    counts = torch.full((T,), K, dtype=torch.int32, device=device)
    counts[: min(T, 2)] = torch.tensor([0, 1], dtype=torch.int32, device=device)[: min(T, 2)]
    outputs[0] = float("nan")  # what lies past a count is never looked at
    return dict(outputs=outputs, lse=lse, counts=counts)
