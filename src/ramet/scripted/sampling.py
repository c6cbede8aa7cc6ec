"""One token from one row of logits, in numpy: the meaning of `Sampling` without tensors or batches."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ramet.runtime.types import Sampling, TokenLogprob
from ramet.scripted.model import Logits

_GREEDY_BELOW = 1e-5


def adjust(logits: Logits, sampling: Sampling, prompt: Sequence[int], output: Sequence[int]) -> Logits:
    """Penalties, biases and the allowed set: the distribution before temperature."""
    adjusted = logits.astype(np.float32, copy=True)
    if sampling.repetition_penalty != 1.0 and (seen := sorted({*prompt, *output})):
        values = adjusted[seen]
        penalty = np.float32(sampling.repetition_penalty)
        adjusted[seen] = np.where(values > 0, values / penalty, values * penalty)
    if output and (sampling.frequency_penalty or sampling.presence_penalty):
        counts = np.bincount(np.asarray(output), minlength=len(adjusted)).astype(np.float32)
        adjusted -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
    for token, bias in sampling.logit_bias.items():
        adjusted[token] = -np.inf if bias <= -100 else adjusted[token] + np.float32(bias)
    if sampling.allowed_token_ids:
        allowed = np.full_like(adjusted, -np.inf)
        allowed[list(sampling.allowed_token_ids)] = adjusted[list(sampling.allowed_token_ids)]
        adjusted = allowed
    return adjusted


def draw(adjusted: Logits, sampling: Sampling, noise: tuple[int, int]) -> int:
    """`noise`  seed and place: the same pair gives the same numbers, whatever was drawn before."""
    if sampling.temperature < _GREEDY_BELOW:
        return int(adjusted.argmax())
    kept = _truncate(softmax(adjusted / np.float32(sampling.temperature)), sampling)
    gumbel = np.random.default_rng(noise).gumbel(size=len(adjusted))
    with np.errstate(divide="ignore"):
        return int((np.log(kept) + gumbel).argmax())


def softmax(logits: Logits) -> NDArray[np.float64]:
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(shifted / shifted.sum())


def _truncate(probabilities: NDArray[np.float64], sampling: Sampling) -> NDArray[np.float64]:
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    keep = np.ones(len(order), bool)
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1.0:
        keep[np.cumsum(ranked) - ranked >= sampling.top_p] = False
    keep[ranked < sampling.min_p * ranked[0]] = False
    keep[0] = True
    kept = np.zeros_like(probabilities)
    kept[order[keep]] = ranked[keep]
    return kept


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def token_logprob(logprobs: NDArray[np.float64], token: int, num_top: int) -> TokenLogprob:
    top = np.argsort(-logprobs, kind="stable")[:num_top]
    return TokenLogprob(token, float(logprobs[token]), [(int(index), float(logprobs[index])) for index in top])
