"""LOGITS -> LOGITS: packed token masks, one bit a token. Knows no grammar; whoever has one writes into such words.

Layout   words  int32  [W]   W = ceil(V / 32); bit j of word w, lowest first, is token 32 * w + j; 1 is allowed.
                    Bits past V are 0
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.kernels.token_mask import apply_token_mask

Words = NDArray[np.int32]


def num_words(vocabulary_size: int) -> int:
    return -(-vocabulary_size // 32)


def pack(tokens: Iterable[int], vocabulary_size: int) -> Words:
    """Words in which only `tokens` are allowed; ids outside the vocabulary are left out."""
    return _packed(_known(tokens, vocabulary_size), vocabulary_size)


def pack_all_but(tokens: Iterable[int], vocabulary_size: int) -> Words:
    """Words in which all but `tokens` are allowed."""
    return _packed(~_known(tokens, vocabulary_size), vocabulary_size)


def _known(tokens: Iterable[int], vocabulary_size: int) -> NDArray[np.bool_]:
    """bool [V]"""
    known = np.zeros(vocabulary_size, dtype=np.bool_)
    known[[token for token in tokens if 0 <= token < vocabulary_size]] = True
    return known


def _packed(allowed: NDArray[np.bool_], vocabulary_size: int) -> Words:
    bits = np.zeros(num_words(vocabulary_size) * 32, dtype=np.bool_)
    bits[:vocabulary_size] = allowed
    return np.packbits(bits, bitorder="little").view(np.int32)


def unpack(words: Words, vocabulary_size: int) -> NDArray[np.bool_]:
    """bool [V]: may the token be drawn?"""
    return np.unpackbits(words.view(np.uint8), bitorder="little", count=vocabulary_size).view(np.bool_)


def apply_masks(logits: Tensor, masked: Sequence[tuple[int, Words]]) -> None:
    """Set the logits of what the words deny to -inf, in place.

    logits  float32 [R, V]
    masked  (row, words) pairs
    """
    if not masked:
        return
    if logits.device.type == "cpu":
        for row, words in masked:
            denied = torch.from_numpy(unpack(~words, logits.shape[1]))
            logits[row].masked_fill_(denied, float("-inf"))
        return
    packed = np.zeros((len(logits), num_words(logits.shape[1])), dtype=np.int32)
    rows = [row for row, _ in masked]
    packed[rows] = [words for _, words in masked]
    device = logits.device
    apply_token_mask(logits, torch.from_numpy(packed).to(device), torch.tensor(rows, dtype=torch.int32, device=device))
