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

from ramet.runtime.sampling.masks import Words

MAX_TOKENS = 2048
"""Up to this many a row counts as narrow: past it, a gather costs what it saves."""


class Narrow(NamedTuple):
    """Some rows' allowed tokens, ascending, padded to one width."""

    rows: list[int]
    tokens: Tensor
    """int64 [R, W]  padding is token 0"""
    logits: Tensor
    """float32 [R, W]  padding is -inf"""


def num_allowed(words: Words) -> int:
    """How many tokens the mask allows."""
    return int(np.bitwise_count(words.view(np.uint32)).sum())


def allowed_tokens(words: Words) -> NDArray[np.int64]:
    """The tokens of a mask, ascending. Only words with a bit are unpacked."""
    at = np.flatnonzero(words)
    bits = np.unpackbits(words[at].view(np.uint8), bitorder="little").reshape(-1, 32)
    word, bit = bits.nonzero()
    return at[word] * 32 + bit


def gather(logits: Tensor, masked: Sequence[tuple[int, Words]]) -> Narrow:
    """The allowed logits of the rows of `masked`, each with at least one token.

    logits  float32 [R, V]  on the CPU
    """
    found = [allowed_tokens(words) for _, words in masked]
    rows = [row for row, _ in masked]
    width = max(map(len, found))
    tokens = np.zeros((len(rows), width), dtype=np.int64)
    values = np.full((len(rows), width), -np.inf, dtype=np.float32)
    whole = logits.numpy()
    for i, (row, own) in enumerate(zip(rows, found, strict=True)):
        tokens[i, : len(own)] = own
        values[i, : len(own)] = whole[row, own]
    return Narrow(rows, torch.from_numpy(tokens), torch.from_numpy(values))
