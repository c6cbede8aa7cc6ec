"""The ggml tensor types: how many bytes a block has, and what numbers are in it. Knows no file and no model.

A quantised row is a run of blocks, each with its scales and `block_size` small integers. `dequantize` is vectorised
over blocks and works in chunks that stay in the cache, so that the float32 in between is never written to memory. The
chunks are dealt to threads of our own: torch's own would meet at a barrier after each of ten small operations, which on
a busy machine costs a hundred times the work (docs/LOG.md).
Layouts: ggml's `ggml-common.h` and `ggml-quants.c`; the `gguf` package's numpy version is the oracle in our tests.
"""

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK = 1 << 15
"""Weights per chunk: 128 KB of float32, and no more than what torch computes on one thread."""


class GgmlType(NamedTuple):
    """A storage type of ggml."""

    name: str
    block_size: int
    """Weights per block."""
    block_bytes: int

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) // self.block_size * self.block_bytes


GGML_TYPES: dict[int, GgmlType] = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    20: GgmlType("IQ4_NL", 32, 18),
    23: GgmlType("IQ4_XS", 256, 136),
    30: GgmlType("BF16", 1, 2),
}
"""By the number that a GGUF file stores."""

PLAIN_TYPES: dict[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The types that torch has itself."""


def dequantize(blocks: Tensor, kind: GgmlType, out: Tensor) -> None:
    """Fill `out` with the numbers that `blocks` stand for, computed in float32.

    blocks  uint8  [rows, bytes per row]  contiguous
    out     float  [rows, columns]        contiguous, any float dtype
    """
    flat, numbers = blocks.view(-1, kind.block_bytes), out.view(-1, kind.block_size)
    expand, step = _EXPAND[kind.name], max(1, _CHUNK // kind.block_size)

    def expand_run(begin: int, end: int) -> None:
        for start in range(begin, end, step):
            stop = min(start + step, end)
            numbers[start:stop] = expand(flat[start:stop])

    pool, workers = _pool()
    share = max(step, -(-len(flat) // workers))
    for done in [pool.submit(expand_run, i, min(i + share, len(flat))) for i in range(0, len(flat), share)]:
        done.result()


@functools.cache
def _pool() -> tuple[ThreadPoolExecutor, int]:
    workers = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return ThreadPoolExecutor(workers, thread_name_prefix="ramet-dequantize"), workers


def _halves(blocks: Tensor, start: int, stop: int) -> Tensor:
    """float16 fields at bytes [start, stop) of each block, as float32 [n, fields]."""
    return blocks[:, start:stop].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """uint8 [n, k] -> uint8 [n, 2k]: all low nibbles, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def _fifth_bits(packed: Tensor) -> Tensor:
    """uint8 [n, 4] -> uint8 [n, 32]: bit i of the little-endian word, worth 16."""
    return ((packed[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1) << 4


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 2:]).float() - 8) * _halves(blocks, 0, 2)


def _q4_1(blocks: Tensor) -> Tensor:
    scales = _halves(blocks, 0, 4)
    return (_nibbles(blocks[:, 4:]).float() * scales[:, :1]).add_(scales[:, 1:])


def _q5_0(blocks: Tensor) -> Tensor:
    return ((_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).float() - 16) * _halves(blocks, 0, 2)


def _q5_1(blocks: Tensor) -> Tensor:
    scales = _halves(blocks, 0, 4)
    numbers = (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])).float()
    return (numbers * scales[:, :1]).add_(scales[:, 1:])


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float() * _halves(blocks, 0, 2)


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 12 bytes that hold 8 six-bit scales and 8 six-bit minima -> two float32 [n, 8].

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits; the two top bits there and the nibbles of
    bytes 8-11 make up scales and minima 4-7.
    """
    first, second, last = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (last & 15) | ((first >> 6) << 4)), dim=1)
    minima = torch.cat((second & 63, (last >> 4) | ((second >> 6) << 4)), dim=1)
    return scales.float(), minima.float()


def _q4_k(blocks: Tensor) -> Tensor:
    return _k_affine(blocks, _k_nibbles(blocks[:, 16:]).view(-1, 8, 32))


def _q5_k(blocks: Tensor) -> Tensor:
    sub_block = torch.arange(8, dtype=torch.uint8)[:, None]
    fifth = ((blocks[:, None, 16:48] >> sub_block) & 1) << 4  # [n, 8, 32]: bit s of byte j is of sub-block s
    return _k_affine(blocks, _k_nibbles(blocks[:, 48:]).view(-1, 8, 32) | fifth)


def _k_nibbles(packed: Tensor) -> Tensor:
    """uint8 [n, 128] -> uint8 [n, 4, 2, 32]: each 32 bytes hold two sub-blocks, low nibbles and high nibbles."""
    quarters = packed.reshape(-1, 4, 32)
    return torch.stack((quarters & 15, quarters >> 4), dim=2)


def _k_affine(blocks: Tensor, numbers: Tensor) -> Tensor:
    """scale * number - minimum, per sub-block of 32. numbers  uint8 [n, 8, 32]."""
    halves = _halves(blocks, 0, 4)
    scales, minima = _k_scales(blocks[:, 4:16])
    scales, minima = scales * halves[:, :1], minima * halves[:, 1:]
    return (numbers.float() * scales[:, :, None]).sub_(minima[:, :, None]).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    low, high = blocks[:, :128].view(-1, 2, 64), blocks[:, 128:192].view(-1, 2, 32)
    low_nibbles = torch.cat((low & 15, low >> 4), dim=2).view(-1, 2, 4, 32)
    two_bits = (high[:, :, None, :] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]) & 3
    numbers = (low_nibbles | (two_bits << 4)).view(torch.int8) - 32
    scales = blocks[:, 192:208].view(torch.int8).float() * _halves(blocks, 208, 210)  # [n, 16]
    return (numbers.view(-1, 16, 16).float() * scales[:, :, None]).flatten(1)


def _two_bits(packed: Tensor) -> Tensor:
    """uint8 [n, 64] -> uint8 [n, 16, 16]: each 32 bytes hold four runs of 32, from the lowest two bits up."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    return ((packed.reshape(-1, 2, 1, 32) >> shifts) & 3).view(-1, 16, 16)


def _q2_k(blocks: Tensor) -> Tensor:
    halves = _halves(blocks, 80, 84)
    scales = (blocks[:, :16] & 15).float() * halves[:, :1]
    minima = (blocks[:, :16] >> 4).float() * halves[:, 1:]
    return (_two_bits(blocks[:, 16:80]).float() * scales[:, :, None]).sub_(minima[:, :, None]).flatten(1)


def _q3_k(blocks: Tensor) -> Tensor:
    """Three bits: two in `qs`, and a mask whose *clear* bit means "4 less"; six-bit scales, offset by 32."""
    low_bits = torch.cat((blocks[:, 96:104] & 15, blocks[:, 96:104] >> 4), dim=1)  # [n, 16]
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high_bits = ((blocks[:, None, 104:108] >> shifts) & 3).flatten(1)  # [n, 16]
    scales = ((low_bits | (high_bits << 4)).view(torch.int8) - 32).float() * _halves(blocks, 108, 110)
    is_set = (blocks[:, None, :32] >> torch.arange(8, dtype=torch.uint8)[:, None]) & 1  # [n, 8, 32]
    numbers = _two_bits(blocks[:, 32:96]).view(torch.int8) + (is_set.view(torch.int8) * 4 - 4).view(-1, 16, 16)
    return (numbers.float() * scales[:, :, None]).flatten(1)


_IQ4_LEVELS = torch.tensor(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.float32
)
"""What the 16 codes of IQ4_NL and IQ4_XS stand for: `kvalues_iq4nl` of ggml-common.h."""


def _iq4_nl(blocks: Tensor) -> Tensor:
    return _IQ4_LEVELS[_nibbles(blocks[:, 2:]).int()] * _halves(blocks, 0, 2)


def _iq4_xs(blocks: Tensor) -> Tensor:
    """Eight runs of 32 codes, each with a six-bit scale, offset by 32."""
    low_bits = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), dim=2).flatten(1)  # [n, 8]
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    high_bits = ((blocks[:, 2:4, None] >> shifts) & 3).flatten(1)  # [n, 8]: a little-endian word, two bits each
    scales = ((low_bits | (high_bits << 4)).view(torch.int8) - 32).float() * _halves(blocks, 0, 2)
    codes = _nibbles(blocks[:, 8:].reshape(-1, 16)).view(-1, 8, 32)
    return (_IQ4_LEVELS[codes.int()] * scales[:, :, None]).flatten(1)


_EXPAND: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
