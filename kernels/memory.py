"""CPU memory on huge pages, zero, and backed by the system only as it is first written.

Streaming through 4 KiB pages stops the hardware prefetchers at each page's end and costs a TLB miss per page. Where
the system has no huge pages, this is ordinary memory.
"""

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

_HUGE = 2 << 20


def zeros_on_huge_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Like torch.zeros, but aligned to 2 MiB and advised to lie on huge pages. Freed with its last view."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(tuple(shape), dtype=dtype)
    memory = mmap.mmap(-1, num_bytes + _HUGE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    raw = torch.frombuffer(memory, dtype=torch.uint8)  # keeps `memory` alive
    start = -raw.data_ptr() % _HUGE
    return raw[start : start + num_bytes].view(dtype).view(tuple(shape))
