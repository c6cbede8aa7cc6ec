"""Noise that is a pure function of (seed, position, token): no generator, no state, nothing to save or restore.

A token is drawn by the exponential race: candidate i gets E_i ~ Exp(1), and the largest logit_i / T - log E_i wins,
which happens with probability softmax(logits / T)_i. E_i comes from a counter-based hash, in the spirit of "Parallel
random numbers: as easy as 1, 2, 3" (Salmon et al. 2011): the position is the counter, the seed the key. Therefore

- a seeded sequence draws the same tokens alone, in a batch, after preemption, on a fork's continuation, with drafts or
  without, and whichever candidates a filter left: a token's noise depends on nothing but these three numbers;
- two draws from almost equal logits (bf16, another device) nearly always agree: they share their noise.

`position` is the token's index in its whole sequence, prompt included: no turn of a branch meets the noise of another.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK_64 = (1 << 64) - 1
_MULTIPLIERS = (0x7FEB352D, 0x846CA68B, 0x2C1B3C6D)
"""Odd 32-bit constants with good avalanche (the first two are of Wellons' "lowbias32", the third of his "triple32")."""
_BELOW_ONE = 1.0 - 2.0**-24


def noise_keys(seeds: list[int], positions: list[int]) -> NDArray[np.int32]:
    """The two key words of each draw: int32 [R, 2]. Any int is a seed; its low 64 bits count."""
    seed = np.array([seed & _MASK_64 for seed in seeds], dtype=np.uint64)
    mixed = _splitmix(_splitmix(seed) ^ np.array(positions, dtype=np.uint64))
    return mixed.view(np.uint32).reshape(-1, 2).view(np.int32)


def log_exponentials(keys: Tensor, vocabulary_size: int, tokens: Tensor | None = None) -> Tensor:
    """log E for each draw and token.

    keys    int32 [R, 2]   from `noise_keys`
    tokens  int64 [R, K]   only these tokens; None: all of the vocabulary
    returns float32 [R, K] or [R, vocabulary_size], within (-22.2, 2.9)
    """
    hashed = token_hashes(vocabulary_size, keys.device)
    bits = _noise_bits(keys, hashed if tokens is None else hashed[tokens])
    uniform = bits.float().add_(0.5).mul_(2.0**-31).clamp_(max=_BELOW_ONE)  # in (0, 1), finest near 0
    return uniform.neg_().log1p_().neg_().log_()


def _noise_bits(keys: Tensor, hashed: Tensor) -> Tensor:
    """31 random bits a draw and token: int32 [R, K], not negative."""
    first, second, third = (_signed(multiplier) for multiplier in _MULTIPLIERS)
    bits = hashed ^ keys[:, :1]  # [R, K]
    bits.mul_(first)
    bits ^= (bits >> 15).bitwise_and_(0x1FFFF)  # a logical shift: torch's keeps the sign
    bits.add_(keys[:, 1:]).mul_(second)
    bits ^= (bits >> 16).bitwise_and_(0xFFFF)
    bits.mul_(third)
    bits ^= (bits >> 15).bitwise_and_(0x1FFFF)
    return bits.bitwise_and_(0x7FFFFFFF)


def noise_bits_reference(key: tuple[int, int], token: int) -> int:
    """The definition, in Python's integers, for one draw and one token; tests compare with it."""
    first, second, third = _MULTIPLIERS
    bits = (_token_hash(token) ^ (key[0] & 0xFFFFFFFF)) * first & 0xFFFFFFFF
    bits ^= bits >> 15
    bits = (bits + key[1]) * second & 0xFFFFFFFF
    bits ^= bits >> 16
    bits = bits * third & 0xFFFFFFFF
    return (bits ^ (bits >> 15)) & 0x7FFFFFFF


@lru_cache(maxsize=8)
def token_hashes(vocabulary_size: int, device: torch.device) -> Tensor:
    """int32 [V]: a random-looking word per token, so that neighbours share no pattern."""
    word = np.arange(1, vocabulary_size + 1, dtype=np.uint32)
    for shift, multiplier in ((16, _MULTIPLIERS[0]), (15, _MULTIPLIERS[1])):
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(multiplier)
    word ^= word >> np.uint32(16)
    return torch.from_numpy(word.view(np.int32)).to(device)


def _token_hash(token: int) -> int:
    word = token + 1
    for shift, multiplier in ((16, _MULTIPLIERS[0]), (15, _MULTIPLIERS[1])):
        word = (word ^ (word >> shift)) * multiplier & 0xFFFFFFFF
    return word ^ (word >> 16)


def _splitmix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele, Lea and Flood's SplitMix64: a bijection of 64 bits with full avalanche."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
