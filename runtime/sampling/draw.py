"""LOGITS -> IDS: temperature, top-k, top-p, min-p, and the draw, for many rows at once. Knows no sequence, no grammar.

The order is temperature, top-k, top-p (of what top-k left, renormalised), min-p. Each of the three filters keeps a head
of the tokens sorted by logit, so together they are one number a row: the *floor*, the smallest logit that stays. Tokens
whose logits tie with the floor stay as well; so the kept set does not depend on how a sort breaks ties.

No row is sorted unless it must be: the floor is sought in the 1,024 largest logits, and only then in a sort of all. A
row whose kept tokens all lie in that head draws among them, any other from the whole vocabulary above its floor. Both
meet the same noise (noise.py), so which way a row took cannot be seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.runtime.sampling.candidates import candidates
from ramet.runtime.sampling.noise import log_exponentials, noise_bits_reference, noise_keys
from ramet.runtime.types import Sampling

GREEDY_BELOW = 1e-5
"""A temperature up to this is greedy: the quotients would overflow long before the draw differed."""
_HEAD = 1024
"""Wide enough for nearly every row (a model at temperature 1 under top-p 0.95 keeps some hundreds)."""


_BLOCK = 1 << 16
"""Elements that a CPU works on at once: temporaries then stay in its cache, and every sum is of one thread."""


def is_greedy(sampling: Sampling) -> bool:
    """Is there nothing to draw?"""
    return sampling.temperature <= GREEDY_BELOW or sampling.top_k == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSettings:
    """Per row, how to draw."""

    temperature: Tensor
    """float32 [R]  above GREEDY_BELOW"""
    top_k: Tensor
    """int64 [R]  1 to V; V: no filter"""
    top_p: Tensor
    """float64 [R]  in (0, 1]; 1: no filter"""
    log_min_p: Tensor
    """float32 [R]  -inf: no filter"""
    keys: Tensor
    """int32 [R, 2]  from `noise_keys`"""
    vocabulary_size: int
    tokens: Tensor | None
    """int64 [R, W]  the token of each column of the logits; None: the columns are the vocabulary"""
    is_cut: NDArray[np.bool_]
    """[R], on the host: does top-k or top-p filter this row?"""
    has_top_p: bool
    has_min_p: bool
    """Does top-p, does min-p filter any row?"""


def draw_settings(
    rows: Sequence[Sampling],
    seeds: list[int],
    positions: list[int],
    vocabulary_size: int,
    device: torch.device,
    tokens: Tensor | None = None,
) -> DrawSettings:
    """Settings of the rows that draw (not the greedy ones), in order; `tokens` as in DrawSettings."""
    top_k = [row.top_k if 0 < row.top_k < vocabulary_size else vocabulary_size for row in rows]
    min_p = np.array([row.min_p for row in rows], dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_min_p = np.log(min_p)
    return DrawSettings(
        temperature=torch.tensor([row.temperature for row in rows], dtype=torch.float32, device=device),
        top_k=torch.tensor(top_k, dtype=torch.int64, device=device),
        top_p=torch.tensor([row.top_p for row in rows], dtype=torch.float64, device=device),
        log_min_p=torch.from_numpy(log_min_p).to(device=device, dtype=torch.float32),
        keys=torch.from_numpy(noise_keys(seeds, positions)).to(device),
        vocabulary_size=vocabulary_size,
        tokens=tokens,
        is_cut=np.array([k < vocabulary_size or row.top_p < 1 for k, row in zip(top_k, rows, strict=True)]),
        has_top_p=any(row.top_p < 1 for row in rows),
        has_min_p=bool((min_p > 0).any()),
    )


def argmax_rows(logits: Tensor) -> Tensor:
    """The first largest logit of each row: int64 [R]. numpy's is several times faster than torch's on a CPU."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def draw_tokens(logits: Tensor, settings: DrawSettings) -> Tensor:
    """Draw one token a row: int64 [R].

    logits  float32 [R, V], or [R, W] of `settings.tokens`  no NaN, no +inf, in each row at least one that is finite;
            not changed
    """
    if settings.tokens is None and (narrowed := _likely(logits, settings)) is not None:
        logits, settings = narrowed
    R, W = logits.shape
    step = max(1, _BLOCK // W) if logits.device.type == "cpu" else R
    blocks = [slice(start, start + step) for start in range(0, R, step)] if step < R else [slice(None)]
    columns = torch.cat([_draw_block(logits[block], _take(settings, block)) for block in blocks])
    return columns if settings.tokens is None else settings.tokens.gather(1, columns[:, None])[:, 0]


def _likely(logits: Tensor, settings: DrawSettings) -> tuple[Tensor, DrawSettings] | None:
    """The same draw among the tokens that can win it; None where that is not known, or a filter needs the whole row."""
    if logits.device.type != "cpu" or settings.is_cut.any() or settings.has_min_p or logits.stride(1) != 1:
        return None
    tokens = candidates(logits, settings.temperature, settings.keys)
    return None if tokens is None else (logits.gather(1, tokens), replace(settings, tokens=tokens))


def _draw_block(logits: Tensor, settings: DrawSettings) -> Tensor:
    """The column that each row draws."""
    scaled = logits / settings.temperature[:, None]
    floors = torch.full_like(settings.log_min_p, float("-inf"))
    if settings.has_min_p:
        floors = scaled.amax(-1) + settings.log_min_p
    drawn = torch.empty(len(scaled), dtype=torch.int64, device=logits.device)
    for rows in chosen_rows(~settings.is_cut, logits.device):
        drawn[rows] = _race_all(scaled[rows], floors[rows], _take(settings, rows))
    for rows in chosen_rows(settings.is_cut, logits.device):
        drawn[rows] = _race_cut(scaled[rows], floors[rows], _take(settings, rows))
    return drawn


def chosen_rows(flags: NDArray[np.bool_], device: torch.device) -> list[Tensor | slice]:
    """The rows flagged, as one index; none where there are none; a slice, which copies nothing, where it is all."""
    if flags.all():
        return [slice(None)]
    return [torch.from_numpy(flags.nonzero()[0]).to(device)] if flags.any() else []


def _race_all(scaled: Tensor, floors: Tensor, settings: DrawSettings) -> Tensor:
    scores = log_exponentials(settings.keys, settings.vocabulary_size, settings.tokens).neg_().add_(scaled)
    if bool((floors > float("-inf")).any()):
        scores.masked_fill_(scaled < floors[:, None], float("-inf"))
    return argmax_rows(scores)


def _race_cut(scaled: Tensor, floors: Tensor, settings: DrawSettings) -> Tensor:
    """Rows that top-k or top-p filters: among the head where it holds all that is kept, else by the floor of a sort."""
    values, columns = _head(scaled)  # [R, W]
    totals = torch.logsumexp(scaled, -1) if settings.has_top_p else floors
    floor = torch.maximum(floors, _cut(values, totals, settings, scaled.shape[1]))
    tokens = columns if settings.tokens is None else settings.tokens.gather(1, columns)
    scores = values - log_exponentials(settings.keys, settings.vocabulary_size, tokens)
    scores.masked_fill_(values < floor[:, None], float("-inf"))
    drawn = columns.gather(1, argmax_rows(scores)[:, None])[:, 0]
    if scaled.shape[1] == values.shape[1] or bool((found := values[:, -1] < floor).all()):
        return drawn
    rest = (~found).nonzero()[:, 0]
    scaled, settings = scaled[rest], _take(settings, rest)
    floor = torch.maximum(floors[rest], _cut_of_all(scaled, totals[rest], settings))
    drawn[rest] = _race_all(scaled, floor, settings)
    return drawn


def _head(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row and where they stand, largest first: float32, int64 [R, W]."""
    V = scaled.shape[1]
    if scaled.device.type != "cpu" or V <= _HEAD:
        found = scaled.topk(min(_HEAD, V))
        return found.values, found.indices
    # numpy's partition is vectorised: for 1,024 of 49,152 it takes a quarter of the time of torch's topk
    rows = scaled.numpy()
    places = np.argpartition(rows, V - _HEAD, axis=-1)[:, V - _HEAD :]
    order = np.argsort(-np.take_along_axis(rows, places, -1), axis=-1)
    tokens = torch.from_numpy(np.take_along_axis(places, order, -1))
    return scaled.gather(1, tokens), tokens


def _cut_of_all(scaled: Tensor, totals: Tensor, settings: DrawSettings) -> Tensor:
    """The floor that top-k and top-p set, of whole rows. Sorting is cheap: the sums go no further than they must."""
    values = _sorted(scaled)
    V = values.shape[1]
    floor = _cut(values[:, : 8 * _HEAD], totals, settings, V)
    return floor if bool((floor > float("-inf")).all()) else _cut(values, totals, settings, V)


def _sorted(scaled: Tensor) -> Tensor:
    """Values only, largest first. numpy's sort is vectorised too: 30 times faster than torch's on a CPU."""
    if scaled.device.type == "cpu":
        return torch.from_numpy(np.sort(scaled.numpy(), axis=-1)).flip(-1)
    return scaled.sort(-1, descending=True).values


def _cut(values: Tensor, totals: Tensor, settings: DrawSettings, V: int) -> Tensor:
    """The floor that top-k and top-p set, as far as this head shows it; -inf where the head is too short to tell.

    values  float32 [R, W]  the largest scaled logits of each row, sorted
    totals  float32 [R]     logsumexp of the whole rows (read only where top-p filters)
    """
    width = values.shape[1]
    knows_k = (settings.top_k <= width)[:, None]  # [R, 1], as all that follows but weights
    of_k = values.gather(1, (settings.top_k.clamp(max=width) - 1)[:, None]).masked_fill_(~knows_k, float("-inf"))
    if not settings.has_top_p:
        return of_k[:, 0]
    weights = (values - values[:, :1]).double().exp_().masked_fill_(values < of_k, 0.0)  # [R, W]
    whole = weights.sum(-1, keepdim=True)
    if width < V:
        all_of_row = (totals - values[:, 0]).double().exp_()[:, None]
        whole = torch.where(knows_k, whole, all_of_row)
    reached = weights.cumsum(-1)
    wanted = settings.top_p[:, None] * whole
    last = ((reached - weights < wanted) & (weights > 0)).sum(-1, keepdim=True) - 1  # before it, less than wanted
    tells = knows_k | ((settings.top_k[:, None] >= V) & (reached[:, -1:] >= wanted))
    of_p = values.gather(1, last.clamp_(min=0))
    return torch.where(tells & (settings.top_p[:, None] < 1), of_p, of_k)[:, 0]


def _take(settings: DrawSettings, rows: Tensor | slice) -> DrawSettings:
    if isinstance(rows, slice) and rows == slice(None):
        return settings
    return DrawSettings(
        temperature=settings.temperature[rows],
        top_k=settings.top_k[rows],
        top_p=settings.top_p[rows],
        log_min_p=settings.log_min_p[rows],
        keys=settings.keys[rows],
        vocabulary_size=settings.vocabulary_size,
        tokens=None if settings.tokens is None else settings.tokens[rows],
        is_cut=settings.is_cut[rows if isinstance(rows, slice) else rows.cpu().numpy()],
        has_top_p=settings.has_top_p,
        has_min_p=settings.has_min_p,
    )


# The definition, one row at a time, in float64 and Python; tests compare with it ------------------------------------


def kept_reference(logits: Sequence[float], sampling: Sampling) -> dict[int, float]:
    """Token -> probability of what the filters keep: the distribution that a row is drawn from."""
    scaled = {token: logit / sampling.temperature for token, logit in enumerate(logits) if logit > float("-inf")}
    top = max(scaled.values())
    weights = {token: float(np.exp(value - top)) for token, value in scaled.items()}
    order = sorted(weights, key=lambda token: -scaled[token])
    if 0 < sampling.top_k < len(order):
        order = [token for token in order if scaled[token] >= scaled[order[sampling.top_k - 1]]]
    if sampling.top_p < 1:
        wanted, before, last = sampling.top_p * sum(weights[token] for token in order), 0.0, order[0]
        for token in order:
            if before >= wanted:
                break
            before, last = before + weights[token], token
        order = [token for token in order if scaled[token] >= scaled[last]]
    order = [token for token in order if weights[token] >= sampling.min_p]
    total = sum(weights[token] for token in order)
    return {token: weights[token] / total for token in order}


def draw_reference(logits: Sequence[float], sampling: Sampling, seed: int, position: int) -> int:
    """One draw, by the definition."""
    first, second = (int(word) & 0xFFFFFFFF for word in noise_keys([seed], [position])[0])

    def score(token: int, probability: float) -> float:
        uniform = (noise_bits_reference((first, second), token) + 0.5) * 2.0**-31
        return float(np.log(probability) - np.log(-np.log1p(-uniform)))

    return max(kept_reference(logits, sampling).items(), key=lambda item: score(*item))[0]
