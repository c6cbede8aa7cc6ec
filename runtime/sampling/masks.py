"""LOGITS -> LOGITS: packed token masks, one bit a token. Knows no grammar; whoever has one writes into such words.

Layout   words  int32  [W]   W = ceil(V / 32); bit j of word w, lowest first, is token 32 * w + j; 1 is allowed.
                    Bits past V are 0
"""

import ctypes
import functools
import logging
from collections.abc import Iterable, Sequence
from ctypes import c_int, c_void_p

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.kernels.cpu.build import load_library
from ramet.kernels.token_mask import apply_token_mask
from ramet.runtime.errors import NotBuilt

Words = NDArray[np.int32]
_log = logging.getLogger(__name__)


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


@functools.lru_cache(maxsize=256)
def row_numbers(rows: tuple[int, ...], device: torch.device) -> Tensor:
    """int64 [R] on the device; a batch that stays the same sends them once."""
    return torch.tensor(rows, dtype=torch.int64).to(device)


def apply_device_masks(logits: Tensor, words: Tensor, rows: Sequence[int], numbers: Sequence[int]) -> Tensor:
    """The same with words that are on the device already: bool [R], the rows in which nothing is allowed. Those are
    filled with zeros, so that a draw from them disturbs nothing.

    logits   float32 [R, V]
    words    int32 [M, W]
    rows     of the logits, and the number of each one's words
    """
    device = logits.device
    own, theirs = row_numbers(tuple(rows), device), row_numbers(tuple(numbers), device)
    apply_token_mask(logits, words, own.int(), theirs.int())
    closed = logits.amax(-1) == float("-inf")
    logits.masked_fill_(closed[:, None], 0.0)
    return closed


def apply_masks(logits: Tensor, masked: Sequence[tuple[int, Words]]) -> None:
    """Set the logits of what the words deny to -inf, in place.

    logits  float32 [R, V]
    masked  (row, words) pairs
    """
    if not masked:
        return
    if logits.device.type == "cpu":
        for row, words in masked:
            _deny(logits[row], words)
        return
    packed = np.zeros((len(logits), num_words(logits.shape[1])), dtype=np.int32)
    rows = [row for row, _ in masked]
    packed[rows] = [words for _, words in masked]
    device = logits.device
    apply_token_mask(logits, torch.from_numpy(packed).to(device), torch.tensor(rows, dtype=torch.int32, device=device))


def _deny(row: Tensor, words: Words) -> None:
    """One row on the CPU, float32 [V]: native code where there is a compiler, a tenth of torch's time."""
    library = native_masks()
    if library is None or row.stride(0) != 1:
        row.masked_fill_(torch.from_numpy(unpack(~words, len(row))), float("-inf"))
        return
    assert len(words) == num_words(len(row)), f"{len(words)} words for {len(row)} tokens"
    words = np.ascontiguousarray(words)
    library.ramet_apply_mask(row.data_ptr(), len(row), words.ctypes.data)


@functools.cache
def native_masks() -> ctypes.CDLL | None:
    """kernels/cpu/mask.cpp; None where there is no compiler."""
    try:
        library = load_library(source="mask")
    except NotBuilt as reason:
        _log.info("masks are applied by torch: %s", reason)
        return None
    library.ramet_apply_mask.argtypes, library.ramet_apply_mask.restype = [c_void_p, c_int, c_void_p], None
    library.ramet_allowed_tokens.argtypes = [c_void_p, c_int, c_int, c_void_p]
    return library
