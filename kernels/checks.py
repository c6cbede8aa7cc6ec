"""Argument checks of kernels: a wrong tensor is named with what was expected, before a kernel reads out of bounds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ramet.runtime.errors import EngineFailed


def check_tensor(
    name: str,
    tensor: Tensor,
    *,
    dtype: torch.dtype | tuple[torch.dtype, ...] | None = None,
    shape: Sequence[int | None] | None = None,
    device: torch.device | None = None,
) -> None:
    """Raise EngineFailed where `tensor` is not as described; None in `shape` allows any size on that axis."""
    dtypes = (dtype,) if isinstance(dtype, torch.dtype) else dtype
    if dtypes is not None and tensor.dtype not in dtypes:
        raise EngineFailed(f"kernel argument {name}: expected dtype {dtypes}, got {tensor.dtype}")
    if shape is not None and not _fits(tensor.shape, shape):
        raise EngineFailed(f"kernel argument {name}: expected shape {list(shape)}, got {list(tensor.shape)}")
    if device is not None and tensor.device != device:
        raise EngineFailed(f"kernel argument {name}: expected on {device}, got {tensor.device}")


def check_last_axis_contiguous(name: str, tensor: Tensor) -> None:
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise EngineFailed(f"kernel argument {name}: the last axis must be contiguous, got strides {tensor.stride()}")


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(w is None or w == s for s, w in zip(shape, wanted, strict=True))
