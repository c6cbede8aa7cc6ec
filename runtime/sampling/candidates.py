"""LOGITS -> LOGITS: the few tokens that can still win a draw, found by native code on a CPU.

A draw over all of a vocabulary costs a hash and two logarithms a token. Nearly all lose by far, which a comparison
tells; the rest are computed exactly, by the very operations that a whole row would go through. So the token is the same
with this and without (kernels/cpu/race.cpp says why the winner is never left out).
"""

import ctypes
import functools
import logging
from ctypes import c_int, c_int64, c_void_p

import numpy as np
import torch
from torch import Tensor

from ramet.kernels.cpu.build import load_library
from ramet.runtime.errors import NotBuilt
from ramet.runtime.sampling.noise import token_hashes

CAPACITY = 1024
"""Tokens named at most. A row with more is flat as no model makes it, and is drawn whole."""
_log = logging.getLogger(__name__)


MIN_VOCABULARY = 4096
"""Below this a whole row costs less than the calls."""


def candidates(logits: Tensor, temperature: Tensor, keys: Tensor, *, variant: str | None = None) -> Tensor | None:
    """int64 [R, W]: tokens of each row, its winner among them; short rows repeat their last. None: draw whole rows.

    logits       float32 [R, V]  on the CPU, last axis contiguous
    temperature  float32 [R]     keys  int32 [R, 2]
    variant      of the native code (kernels/cpu/build.py); None: the best that this CPU runs
    """
    R, V = logits.shape
    library = _library(variant) if V >= MIN_VOCABULARY else None
    if library is None:
        return None
    found, counts = np.empty((R, CAPACITY), dtype=np.int32), np.empty(R, dtype=np.int32)
    hashes = token_hashes(V, logits.device)
    temperature, keys = temperature.contiguous(), keys.contiguous()
    library.ramet_race_candidates(
        logits.data_ptr(),
        logits.stride(0),
        R,
        V,
        temperature.data_ptr(),
        keys.data_ptr(),
        hashes.data_ptr(),
        CAPACITY,
        found.ctypes.data,
        counts.ctypes.data,
    )
    if (counts < 1).any():
        return None
    columns = np.minimum(np.arange(counts.max()), counts[:, None] - 1)
    return torch.from_numpy(np.take_along_axis(found, columns, -1).astype(np.int64))


@functools.cache
def _library(variant: str | None) -> ctypes.CDLL | None:
    try:
        library = load_library(variant, "race")
    except NotBuilt as reason:
        _log.info("draws go over whole rows: %s", reason)
        return None
    library.ramet_race_candidates.argtypes = [
        *(c_void_p, c_int64, c_int, c_int),
        *(c_void_p, c_void_p, c_void_p),
        *(c_int, c_void_p, c_void_p),
    ]
    library.ramet_race_candidates.restype = None
    return library
