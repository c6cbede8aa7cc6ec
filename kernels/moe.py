"""Mixture of experts: send each token to its experts, and multiply each expert's tokens with its own weights.

    weights, experts = top k of softmax(router logits), optionally scaled to add up to 1
    y[i] = x[token of i] @ W[expert of i]^T            i runs over (token, choice) pairs

Layout   logits    float    [T, E]      of the router
         weights   float32  [T, k]
         experts   int32    [T, k]      largest first; of equals, the lower expert
         x         float    [T, K]      last axis contiguous
         w         float    [E, N, K]   contiguous
         returns   float    [T, k, N]   x's dtype, sums in float32: what each chosen expert makes of the token
Traffic  router: T * E * itemsize. Grouped product: each expert's weights once per BLOCK_T of its tokens; experts that
         nobody chose are not read"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op
from ramet.kernels.tuning import chosen


def moe_route_reference(logits: Tensor, k: int, *, normalize: bool = True) -> tuple[Tensor, Tensor]:
    """The definition: (weights, experts)."""
    probabilities = logits.float().softmax(-1)
    # a stable sort, so that ties go to the lower expert on every device
    ordered, experts = probabilities.sort(dim=-1, descending=True, stable=True)
    weights = ordered[:, :k]
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.contiguous(), experts[:, :k].to(torch.int32).contiguous()


def grouped_linear_reference(x: Tensor, w: Tensor, experts: Tensor) -> Tensor:
    """The definition."""
    out = torch.empty((*experts.shape, w.shape[1]), dtype=x.dtype, device=x.device)
    for expert in range(w.shape[0]):
        token, choice = (experts == expert).nonzero(as_tuple=True)
        out[token, choice] = (x[token].float() @ w[expert].float().T).to(x.dtype)
    return out


@triton.jit
def _route_kernel(
    logits_ptr, weights_ptr, experts_ptr, E, stride, K: tl.constexpr, NORMALIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + token * stride + expert, mask=expert < E, other=-float("inf")).to(tl.float32)
    p = tl.exp(logit - tl.max(logit, axis=0))
    p = p / tl.sum(p, axis=0)
    left = tl.where(expert < E, p, -1.0)
    chosen_sum = 0.0
    for choice in tl.static_range(K):
        best = tl.max(left, axis=0)
        which = tl.min(tl.where(left == best, expert, BLOCK), axis=0)
        tl.store(experts_ptr + token * K + choice, which)
        tl.store(weights_ptr + token * K + choice, best)
        chosen_sum += best
        left = tl.where(expert == which, -1.0, left)
    if NORMALIZE:
        for choice in tl.static_range(K):
            place = weights_ptr + token * K + choice
            tl.store(place, tl.load(place) / chosen_sum)


def moe_route_triton(logits: Tensor, k: int, *, normalize: bool = True) -> tuple[Tensor, Tensor]:
    """k maxima one after the other: k is small, and a sort would order what nobody asks for."""
    T, E = logits.shape
    check_last_axis_contiguous("logits", logits)
    weights = torch.empty((T, k), dtype=torch.float32, device=logits.device)
    experts = torch.empty((T, k), dtype=torch.int32, device=logits.device)
    if T > 0:
        _route_kernel[(T,)](
            logits, weights, experts, E, logits.stride(0), K=k, NORMALIZE=normalize, BLOCK=triton.next_power_of_2(E)
        )
    return weights, experts


@triton.jit
def _grouped_kernel(
    x_ptr, w_ptr, order_ptr, tile_expert_ptr, tile_begin_ptr, tile_end_ptr, out_ptr, N, K, x_stride, CHOICES,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    expert = tl.load(tile_expert_ptr + tile).to(tl.int64)
    at = tl.load(tile_begin_ptr + tile) + tl.arange(0, BLOCK_T)
    inside = at < tl.load(tile_end_ptr + tile)
    pair = tl.load(order_ptr + at, mask=inside, other=0).to(tl.int64)  # token * CHOICES + choice
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros([BLOCK_T, BLOCK_N], dtype=tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_ptr + (pair // CHOICES)[:, None] * x_stride + k[None, :],
            mask=inside[:, None] & (k < K)[None, :],
            other=0.0,
        )
        place = (expert * N + column[None, :]) * K + k[:, None]
        w = tl.load(w_ptr + place, mask=(k < K)[:, None] & (column < N)[None, :], other=0.0)
        sums += tl.dot(x, w.to(x.dtype), input_precision="ieee")
    out = out_ptr + pair[:, None] * N + column[None, :]
    tl.store(out, sums.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (column < N)[None, :])


BLOCKS = ((16, 64, 64), (16, 128, 64), (32, 64, 64), (64, 64, 32), (64, 128, 32))
"""Pairs, columns and depth of a program's tile. The first is taken where none was measured."""


def grouped_linear_triton(
    x: Tensor, w: Tensor, experts: Tensor, *, blocks: tuple[int, int, int] | None = None
) -> Tensor:
    """Pairs are sorted by expert, and each expert's run is cut into tiles. `blocks`: None: tuning.py chooses."""
    T, K = x.shape
    E, N, _ = w.shape
    choices = experts.shape[1]
    check_tensor("w", w, shape=(E, N, K), device=x.device)
    check_tensor("experts", experts, dtype=torch.int32, shape=(T, choices), device=x.device)
    check_last_axis_contiguous("x", x)
    out = torch.empty((T, choices, N), dtype=x.dtype, device=x.device)
    if T == 0:
        return out

    def run(blocks: tuple[int, ...]) -> None:
        block_t, block_n, block_k = blocks
        order, tile_expert, tile_begin, tile_end = _tiles_by_expert(experts.flatten(), E, block_t)
        _grouped_kernel[(len(tile_expert), triton.cdiv(N, block_n))](
            x, w, order, tile_expert, tile_begin, tile_end, out, N, K, x.stride(0), choices,
            BLOCK_T=block_t, BLOCK_N=block_n, BLOCK_K=block_k,
        )  # fmt: skip

    run(blocks or chosen("grouped_linear", (E, N, K, choices), BLOCKS, run, x.device))
    return out


def _tiles_by_expert(experts: Tensor, num_experts: int, tile: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs in the order of their experts, and per tile its expert and its range in that order. No host sync: there are
    as many tiles as there could be at most, and those that are not needed are empty."""
    order = experts.sort(stable=True).indices.int()
    counts = torch.bincount(experts, minlength=num_experts)  # [E]
    ends = counts.cumsum(0)
    tiles = (counts + tile - 1) // tile
    tile_ends = tiles.cumsum(0)
    most = min(len(experts), len(experts) // tile + num_experts)
    index = torch.arange(most, device=experts.device)
    expert = torch.searchsorted(tile_ends, index, right=True).clamp_max(num_experts - 1)
    first = ends[expert] - counts[expert] + (index - (tile_ends - tiles)[expert]) * tile
    end = torch.where(index < tile_ends[-1], torch.minimum(first + tile, ends[expert]), first)
    return order, expert.int(), first.int(), end.int()


moe_route = Op("moe_route", reference=moe_route_reference, torch=moe_route_reference, triton=moe_route_triton)
grouped_linear = Op(
    "grouped_linear", reference=grouped_linear_reference, torch=grouped_linear_reference, triton=grouped_linear_triton
)
