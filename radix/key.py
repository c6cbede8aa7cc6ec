"""Token keys as int32 arrays: conversion, comparison, hashing. Knows no tree.

Every operation is one numpy pass over the tokens; nothing here loops in Python per token.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
"""int32 [n]  token ids in order"""
TokensLike = Sequence[int] | Tokens

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_STRIDE = np.uint64(0x9E3779B97F4A7C15)


def as_tokens(tokens: TokensLike) -> Tokens:
    """An int32 array of `tokens`; no copy where it is one already. Lists cost about 40 ns a token, arrays nothing."""
    return np.asarray(tokens, dtype=np.int32)


def common_prefix(left: Tokens, right: Tokens) -> int:
    """Number of leading tokens that the two have in common."""
    length = min(len(left), len(right))
    if length == 0:
        return 0
    differs = left[:length] != right[:length]
    first = int(differs.argmax())  # the first True; 0 also where there is none
    return first if differs[first] else length


def common_prefixes(rows: NDArray[np.int32], key: Tokens) -> NDArray[np.intp]:
    """Of each row of `rows` int32 [n, width], the leading tokens it shares with `key` (at most `width`, `len(key)`)."""
    width = min(rows.shape[1], len(key))
    differs = rows[:, :width] != key[:width]
    shared: NDArray[np.intp] = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
    return shared


def prefix_hash(tokens: Tokens, start: int) -> int:
    """A 64-bit hash of `tokens` standing at positions [start, start + len). Hashes of adjacent pieces add up to the
    hash of both (mod 2**64), so a tree may cut labels anywhere and still know the hash of each prefix. For diagnosis,
    not for identity: the tree itself always compares tokens."""
    mixed = np.arange(start + 1, start + 1 + len(tokens), dtype=np.uint64)
    mixed *= _STRIDE
    mixed ^= tokens.astype(np.uint64)
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_2
    return int(mixed.sum(dtype=np.uint64))


def add_hashes(left: int, right: int) -> int:
    """The hash of two adjacent pieces together; with a negative `right`, of the left piece alone."""
    return (left + right) & 0xFFFF_FFFF_FFFF_FFFF
