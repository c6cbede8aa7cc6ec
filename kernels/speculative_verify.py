"""How many drafted tokens of each row the model confirms, and which token follows them.

Greedy: a draft holds while it is the argmax of the logits before it. Sampled (Leviathan et al. 2023; Chen et al.
2023), with
drafts that are certain (probability 1 under their drafter: forced by a grammar, or copied): draft d at position i
holds where
u_i < p_i(d), p_i the target's distribution after d's predecessors; where it fails, the follower is drawn from p_i
without d.
So the output is distributed as without drafts. The follower is the argmax, or the inverse of the cumulated
distribution at
u_n, of the first position that failed, or of the one after the last draft.

Layout   probabilities  float32  [Q, V]   one row per position, already masked and warped; row r's positions are
                                          [offsets[r], offsets[r + 1]), one more than its drafts
         offsets        int32    [R + 1]
         drafts         int64    [Q]      the token that follows position q; the last of each row is not read
         uniforms       float32  [Q, 2]   acceptance, and follower; None: greedy
         returns        accepted int32 [R], follower int64 [R]
Traffic  one number per draft, and one row of V per row"""

import itertools

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_tensor
from ramet.kernels.registry import Op


def speculative_verify_reference(
    probabilities: Tensor, offsets: Tensor, drafts: Tensor, uniforms: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition."""
    bounds = offsets.tolist()
    accepted, followers = [], []
    for begin, end in itertools.pairwise(bounds):
        at = begin
        while at < end - 1 and _holds(probabilities[at], drafts[at], None if uniforms is None else uniforms[at, 0]):
            at += 1
        last = probabilities[at].clone()
        if at < end - 1:
            last[drafts[at]] = 0.0  # it was refused
        accepted.append(at - begin)
        followers.append(_draw(last, None if uniforms is None else uniforms[at, 1]))
    device = probabilities.device
    return torch.tensor(accepted, dtype=torch.int32, device=device), torch.tensor(followers, device=device)


def _holds(row: Tensor, draft: Tensor, uniform: Tensor | None) -> bool:
    return bool(row.argmax() == draft) if uniform is None else bool(uniform < row[draft])


def _draw(row: Tensor, uniform: Tensor | None) -> int:
    if uniform is None:
        return int(row.argmax())
    cumulated = row.double().cumsum(0)
    return int((cumulated > uniform.double() * cumulated[-1]).int().argmax())


@triton.jit
def _argmax_row(row_ptr, V, BLOCK: tl.constexpr):
    """The first token of the largest probability."""
    best = -float("inf")
    token = 0
    for first in range(0, V, BLOCK):
        at = first + tl.arange(0, BLOCK)
        p = tl.load(row_ptr + at, mask=at < V, other=-float("inf"))
        high = tl.max(p, axis=0)
        if high > best:
            best = high
            token = tl.min(tl.where(p == high, at, V), axis=0)
    return token


@triton.jit
def _verify_kernel(
    p_ptr, offsets_ptr, drafts_ptr, uniforms_ptr, accepted_ptr, follower_ptr, V, p_stride,
    GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0)
    begin = tl.load(offsets_ptr + r).to(tl.int64)
    end = tl.load(offsets_ptr + r + 1).to(tl.int64)
    at = begin
    going = at < end - 1
    refused = -1
    while going:
        draft = tl.load(drafts_ptr + at).to(tl.int32)
        if GREEDY:
            holds = _argmax_row(p_ptr + at * p_stride, V, BLOCK) == draft
        else:
            holds = tl.load(uniforms_ptr + 2 * at) < tl.load(p_ptr + at * p_stride + draft)
        if holds:
            at += 1
            going = at < end - 1
        else:
            refused = draft
            going = False
    row = p_ptr + at * p_stride
    tl.store(accepted_ptr + r, (at - begin).to(tl.int32))
    if GREEDY:
        tl.store(follower_ptr + r, _argmax_row(row, V, BLOCK).to(tl.int64))
    else:
        total = 0.0
        for first in range(0, V, BLOCK):
            token = first + tl.arange(0, BLOCK)
            p = tl.load(row + token, mask=token < V, other=0.0)
            total += tl.sum(tl.where(token == refused, 0.0, p), axis=0)
        wanted = tl.load(uniforms_ptr + 2 * at + 1) * total
        before = 0.0
        follower = V
        for first in range(0, V, BLOCK):
            token = first + tl.arange(0, BLOCK)
            p = tl.load(row + token, mask=token < V, other=0.0)
            p = tl.where(token == refused, 0.0, p)
            # only tokens that can be drawn: rounding must not end on one of probability 0
            hit = (before + tl.cumsum(p, axis=0) > wanted) & (p > 0)
            follower = tl.minimum(follower, tl.min(tl.where(hit, token, V), axis=0))
            before += tl.sum(p, axis=0)
        if follower == V:  # the last sum fell short of the total by rounding
            follower = _argmax_row(row, V, BLOCK)
        tl.store(follower_ptr + r, follower.to(tl.int64))


def speculative_verify_triton(
    probabilities: Tensor, offsets: Tensor, drafts: Tensor, uniforms: Tensor | None = None, *, block: int = 4096
) -> tuple[Tensor, Tensor]:
    """One program per row."""
    Q, V = probabilities.shape
    R = len(offsets) - 1
    check_tensor("probabilities", probabilities, dtype=torch.float32)
    check_tensor("drafts", drafts, dtype=torch.int64, shape=(Q,), device=probabilities.device)
    accepted = torch.empty(R, dtype=torch.int32, device=probabilities.device)
    follower = torch.empty(R, dtype=torch.int64, device=probabilities.device)
    if R > 0:
        _verify_kernel[(R,)](
            probabilities, offsets, drafts, uniforms if uniforms is not None else probabilities, accepted, follower, V,
            probabilities.stride(0), GREEDY=uniforms is None, BLOCK=min(block, max(16, triton.next_power_of_2(V))),
        )  # fmt: skip
    return accepted, follower


speculative_verify = Op(
    "speculative_verify",
    reference=speculative_verify_reference,
    torch=speculative_verify_reference,
    triton=speculative_verify_triton,
)
