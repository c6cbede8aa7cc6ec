"""Rotary frequencies, for every way to stretch a context. Knows no attention: out comes a table of cosines and sines.

    default  f_i = theta ** (-2 i / D)
    linear   f_i / factor                                   (position interpolation, Chen et al. 2023)
    dynamic  theta grows with the context beyond the original one   (NTK-aware scaling)
    llama3   long wavelengths / factor, short ones as they are, a ramp between        (Llama 3.1)
    yarn     the same idea by turns over the original context, and scores rescaled    (Peng et al. 2023)

A cached key keeps the rotation it was stored with, so `dynamic` cannot follow the length of each sequence: its base is
that of the longest context the model is run with. Up to the original context, nothing differs.
"""

import math

import torch
from torch import Tensor

from ramet.kernels.rope import make_rope_table
from ramet.runtime.models.config import RopeConfig


def rope_table(rope: RopeConfig, head_dim: int, num_positions: int) -> Tensor:
    """float32 [num_positions, 2, head_dim / 2]: cosines, then sines."""
    frequencies, scale = rope_frequencies(rope, head_dim, num_positions)
    return make_rope_table(frequencies, num_positions, scale=scale)


def rope_frequencies(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Tensor, float]:
    """float32 [head_dim / 2] radians per position, and what cosines and sines are multiplied by."""
    theta, scale = rope.theta, 1.0
    if rope.kind == "dynamic":
        theta = _stretched_theta(rope, head_dim, num_positions)
    frequencies = 1.0 / (theta ** (torch.arange(0, head_dim, 2).float() / head_dim))
    if rope.divisors:
        frequencies = frequencies / torch.tensor(rope.divisors)
    match rope.kind:
        case "linear":
            frequencies = frequencies / rope.factor
        case "llama3":
            frequencies = _llama3(rope, frequencies)
        case "yarn":
            frequencies, scale = _yarn(rope, frequencies, head_dim), _yarn_scale(rope)
    return frequencies, scale


def _stretched_theta(rope: RopeConfig, head_dim: int, num_positions: int) -> float:
    longest = max(num_positions, rope.original_context_length)
    stretch = rope.factor * longest / rope.original_context_length - (rope.factor - 1)
    return float(rope.theta * stretch ** (head_dim / (head_dim - 2)))


def _llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    turns = rope.original_context_length * frequencies / (2 * math.pi)  # over the original context
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0, 1)  # 0: stretched in full, 1: as it is
    return (1 - keep) * frequencies / rope.factor + keep * frequencies


def _yarn(rope: RopeConfig, frequencies: Tensor, head_dim: int) -> Tensor:
    low, high = (_dimension_that_turns(rope, times, head_dim) for times in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2).float() - low) / max(high - low, 0.001)
    stretch = ramp.clamp(0, 1)
    return frequencies / rope.factor * stretch + frequencies * (1 - stretch)


def _dimension_that_turns(rope: RopeConfig, times: float, head_dim: int) -> float:
    """The dimension (real-valued) whose angle turns so many times over the original context."""
    return head_dim * math.log(rope.original_context_length / (times * 2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _magnitude(rope.factor, rope.mscale) / _magnitude(rope.factor, rope.mscale_all_dim)
    return _magnitude(rope.factor, 1.0)


def _magnitude(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
