"""LOGITS -> LOGITS: rows in which few tokens are allowed, gathered so that the draw works on those alone. CPU only.

Most places of a JSON value allow a handful of tokens: a digit, a comma, one of three names. Denying 49,000 others and
then drawing from all would make a constrained step slower than a free one; gathering the few makes it faster.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.runtime.sampling.masks import Words, native_masks

Tokens = NDArray[np.int64]
MAX_TOKENS = 2048
"""Up to this many a row counts as narrow: past it, a gather costs what it saves."""


class Narrow(NamedTuple):
    """Some rows' allowed tokens, ascending, padded to one width."""

    rows: list[int]
    tokens: Tensor
    """int64 [R, W]  padding is token 0"""
    logits: Tensor
    """float32 [R, W]  padding is -inf"""


def few_tokens(words: Words) -> Tokens | None:
    """The tokens that a mask allows, ascending; None where they are more than MAX_TOKENS."""
    library = native_masks()
    if library is None:
        return _few_tokens_numpy(words)
    words, found = np.ascontiguousarray(words), np.empty(MAX_TOKENS, dtype=np.int64)
    count = library.ramet_allowed_tokens(words.ctypes.data, len(words), MAX_TOKENS, found.ctypes.data)
    return None if count < 0 else found[:count]


def _few_tokens_numpy(words: Words) -> Tokens | None:
    """Only words with a bit are unpacked."""
    at = np.flatnonzero(words)
    if len(at) > MAX_TOKENS:
        return None
    bits = np.unpackbits(words[at].view(np.uint8), bitorder="little").reshape(-1, 32)
    word, bit = bits.nonzero()
    return at[word] * 32 + bit if len(word) <= MAX_TOKENS else None


def gather(logits: Tensor, allowed: Sequence[tuple[int, Tokens]]) -> Narrow:
    """The allowed logits of rows, each with at least one token.

    logits   float32 [R, V]  on the CPU
    allowed  (row, tokens) pairs
    """
    width = max(len(own) for _, own in allowed)
    tokens = np.zeros((len(allowed), width), dtype=np.int64)
    values = np.full((len(allowed), width), -np.inf, dtype=np.float32)
    whole = logits.numpy()
    for i, (row, own) in enumerate(allowed):
        tokens[i, : len(own)] = own
        values[i, : len(own)] = whole[row, own]
    return Narrow([row for row, _ in allowed], torch.from_numpy(tokens), torch.from_numpy(values))
