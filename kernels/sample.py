"""Draw one token a row: temperature, top-k, top-p, min-p and seeded noise in one kernel, without a sort.

The three filters each keep a head of the tokens ordered by logit, so together they are a floor: the smallest logit that
stays, tokens that tie with it included. The floor is found by bisection over the order of floats (their bits, read as
integers, sort as they do): 32 passes that count (top-k) or sum weights (top-p) above a guess. Then the exponential
race:
token i wins with the largest logit_i / temperature - log E_i, E_i ~ Exp(1), where E_i is a hash of (key, token): the
noise of
runtime/sampling/noise.py, so that both samplers draw the same tokens.

    kept    scaled >= floor,  floor = max(k-th largest,  min{v : sum of p over scaled > v is < top_p * sum over top-k},
                                          largest + log(min_p))

Layout   logits       float    [R, V]   masked and penalised; last axis contiguous; not changed
         temperature  float32  [R]      0: greedy, the first largest logit
         top_k        int32    [R]      0 or less: all
         top_p        float32  [R]      1: all
         min_p        float32  [R]      0: all
         keys         int32    [R, 2]   of the noise
         returns      int64 [R] tokens, float32 [R] their log-softmax of `logits` (before temperature and filters)
Traffic  V * itemsize from memory, then up to 66 passes over the row in the cache; one program per row"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_last_axis_contiguous, check_tensor
from ramet.kernels.registry import Op

_M0, _M1, _M2 = 0x7FEB352D, 0x846CA68B, 0x2C1B3C6D
"""The hash's multipliers, as in runtime/sampling/noise.py; a test holds the two together."""


def log_exponentials_reference(keys: Tensor, V: int) -> Tensor:
    """float32 [R, V]: log E of each row and token, in 64-bit integers that stand for 32-bit ones."""

    def times(word: Tensor, multiplier: int) -> Tensor:
        return (word * multiplier) & 0xFFFFFFFF

    token = torch.arange(1, V + 1, dtype=torch.int64, device=keys.device)
    token = times(token ^ (token >> 16), _M0)
    token = times(token ^ (token >> 15), _M1)
    token = token ^ (token >> 16)
    key = keys.long() & 0xFFFFFFFF
    bits = times(token[None, :] ^ key[:, :1], _M0)
    bits = bits ^ (bits >> 15)
    bits = times((bits + key[:, 1:]) & 0xFFFFFFFF, _M1)
    bits = bits ^ (bits >> 16)
    bits = times(bits, _M2)
    bits = (bits ^ (bits >> 15)) & 0x7FFFFFFF
    uniform = ((bits.float() + 0.5) * 2.0**-31).clamp_max(1.0 - 2.0**-24)
    return (-torch.log1p(-uniform)).log()


def sample_reference(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition, with a sort."""
    wide = logits.float()
    V = wide.shape[1]
    tokens = wide.argmax(-1)
    draws = temperature > 0
    scaled = wide / torch.where(draws, temperature, 1.0)[:, None]
    ordered = scaled.sort(-1, descending=True).values
    k = torch.where((top_k > 0) & (top_k < V), top_k, V).long()
    floor = ordered.gather(1, k[:, None] - 1)  # [R, 1]
    weights = (ordered - ordered[:, :1]).double().exp().masked_fill(ordered < floor, 0.0)
    before = weights.cumsum(-1) - weights
    within = (before < top_p[:, None].double() * weights.sum(-1, keepdim=True)) & (weights > 0)
    last = within.sum(-1, keepdim=True) - 1
    floor = torch.where(top_p[:, None] < 1, torch.maximum(floor, ordered.gather(1, last.clamp_min(0))), floor)
    floor = torch.maximum(floor, ordered[:, :1] + min_p[:, None].log())
    scores = (scaled - log_exponentials_reference(keys, V)).masked_fill(scaled < floor, float("-inf"))
    tokens = torch.where(draws, scores.argmax(-1), tokens)
    return tokens, wide.log_softmax(-1).gather(1, tokens[:, None])[:, 0]


@triton.jit
def _order(x):
    """int32 whose order is that of the floats; never NaN."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _log_exponential(token, key0, key1):
    word = (token + 1).to(tl.uint32)
    word = (word ^ (word >> 16)) * tl.full([], 0x7FEB352D, tl.uint32)
    word = (word ^ (word >> 15)) * tl.full([], 0x846CA68B, tl.uint32)
    word = word ^ (word >> 16)
    bits = (word ^ key0) * tl.full([], 0x7FEB352D, tl.uint32)
    bits = bits ^ (bits >> 15)
    bits = (bits + key1) * tl.full([], 0x846CA68B, tl.uint32)
    bits = bits ^ (bits >> 16)
    bits = bits * tl.full([], 0x2C1B3C6D, tl.uint32)
    bits = (bits ^ (bits >> 15)) & 0x7FFFFFFF
    uniform = tl.minimum((bits.to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10, 0.99999994)
    # -log(1 - u): near 0 by its series, since 1 - u would round u away
    small = uniform * (1.0 + uniform * (0.5 + uniform * 0.3333333333))
    exponential = tl.where(uniform < 1e-3, small, -tl.log(1.0 - tl.minimum(uniform, 0.99999994)))
    return tl.log(exponential)


@triton.jit
def _sample_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, keys_ptr, tokens_ptr, logprobs_ptr, V, stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0)
    row = logits_ptr + r.to(tl.int64) * stride
    i = tl.arange(0, BLOCK)
    temperature = tl.load(temperature_ptr + r)
    draws = temperature > 0
    divisor = tl.where(draws, temperature, 1.0)
    largest = -float("inf")
    for first in range(0, V, BLOCK):
        largest = tl.maximum(
            largest, tl.max(tl.load(row + first + i, mask=first + i < V, other=-float("inf")).to(tl.float32))
        )
    top = largest / divisor
    normalizer = 0.0
    for first in range(0, V, BLOCK):
        x = tl.load(row + first + i, mask=first + i < V, other=-float("inf")).to(tl.float32)
        normalizer += tl.sum(tl.exp(x - largest), axis=0)

    lowest = tl.full([], -2147483648, tl.int32)
    floor = lowest  # in the order of _order
    top_k = tl.load(top_k_ptr + r)
    if draws & (top_k > 0) & (top_k < V):
        # the smallest key above which fewer than top_k tokens lie, found bit by bit from the top
        low = tl.full([], -2147483648, tl.int64)
        high = tl.full([], 2147483647, tl.int64)
        while low < high:
            guess = (low + high) >> 1
            above = 0
            for first in range(0, V, BLOCK):
                x = tl.load(row + first + i, mask=first + i < V, other=-float("inf")).to(tl.float32) / divisor
                above += tl.sum(((_order(x).to(tl.int64) > guess) & (first + i < V)).to(tl.int32), axis=0)
            if above < top_k:
                high = guess
            else:
                low = guess + 1
        floor = low.to(tl.int32)
    top_p = tl.load(top_p_ptr + r)
    if draws & (top_p < 1.0):
        whole = 0.0
        for first in range(0, V, BLOCK):
            x = tl.load(row + first + i, mask=first + i < V, other=-float("inf")).to(tl.float32) / divisor
            whole += tl.sum(tl.where(_order(x) >= floor, tl.exp(x - top), 0.0), axis=0)
        low = floor.to(tl.int64)
        high = tl.full([], 2147483647, tl.int64)
        while low < high:
            guess = (low + high) >> 1
            above_weight = 0.0
            for first in range(0, V, BLOCK):
                x = tl.load(row + first + i, mask=first + i < V, other=-float("inf")).to(tl.float32) / divisor
                above_weight += tl.sum(tl.where(_order(x).to(tl.int64) > guess, tl.exp(x - top), 0.0), axis=0)
            if above_weight < top_p * whole:
                high = guess
            else:
                low = guess + 1
        floor = low.to(tl.int32)
    min_p = tl.load(min_p_ptr + r)
    least = -float("inf")
    if draws & (min_p > 0):
        least = top + tl.log(min_p)
    key0 = tl.load(keys_ptr + 2 * r).to(tl.uint32, bitcast=True)
    key1 = tl.load(keys_ptr + 2 * r + 1).to(tl.uint32, bitcast=True)
    best = -float("inf")
    winner = tl.full([], 0, tl.int32)
    winner_logit = best
    for first in range(0, V, BLOCK):
        token = first + i
        logit = tl.load(row + token, mask=token < V, other=-float("inf")).to(tl.float32)
        score = logit
        if draws:
            scaled = logit / divisor
            kept = (_order(scaled) >= floor) & (scaled >= least) & (token < V)
            score = tl.where(kept, scaled - _log_exponential(token, key0, key1), -float("inf"))
        block_best = tl.max(score, axis=0)
        if block_best > best:
            best = block_best
            winner = tl.min(tl.where(score == block_best, token, V), axis=0)
            winner_logit = tl.max(tl.where(token == winner, logit, -float("inf")), axis=0)
    tl.store(tokens_ptr + r, winner.to(tl.int64))
    tl.store(logprobs_ptr + r, winner_logit - largest - tl.log(normalizer))


def sample_triton(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, keys: Tensor, *, block: int = 4096
) -> tuple[Tensor, Tensor]:
    R, V = logits.shape
    check_last_axis_contiguous("logits", logits)
    for name, tensor in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        check_tensor(name, tensor, dtype=torch.float32, shape=(R,), device=logits.device)
    check_tensor("top_k", top_k, dtype=torch.int32, shape=(R,), device=logits.device)
    check_tensor("keys", keys, dtype=torch.int32, shape=(R, 2), device=logits.device)
    tokens = torch.empty(R, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(R, dtype=torch.float32, device=logits.device)
    if R > 0:
        block = min(block, max(16, triton.next_power_of_2(V)))
        _sample_kernel[(R,)](
            logits, temperature, top_k, top_p, min_p, keys.contiguous(), tokens, logprobs, V, logits.stride(0),
            BLOCK=block,
        )  # fmt: skip
    return tokens, logprobs


sample = Op("sample", reference=sample_reference, torch=sample_reference, triton=sample_triton)


def make_inputs(R: int, V: int, dtype: torch.dtype, device: str, *, pad: int = 0) -> dict[str, Tensor]:
    """For test and benchmark; the same at each call. Row 0 is greedy; every filter is on and off somewhere."""
    g = torch.Generator(device).manual_seed(0)
    logits = (3 * torch.randn(R, V + pad, generator=g, device=device)).to(dtype)[:, :V]

    def cycle(values: list[float], kind: torch.dtype) -> Tensor:
        return torch.tensor([values[r % len(values)] for r in range(R)], dtype=kind, device=device)

    return dict(
        logits=logits,
        temperature=cycle([0.0, 1.0, 0.7, 1.5], torch.float32),
        top_k=cycle([0, 0, 5, 1, 40], torch.int32),
        top_p=cycle([1.0, 0.9, 1.0, 0.3], torch.float32),
        min_p=cycle([0.0, 0.0, 0.1], torch.float32),
        keys=torch.randint(-(2**31), 2**31, (R, 2), generator=g, device=device, dtype=torch.int32),
    )
