"""Triton, or a stand-in where it is not installed, so that op files can be imported everywhere.

`triton.jit` of the stand-in keeps the function; launching it raises NotBuilt. The registry never picks it on a CPU.
"""

from collections.abc import Callable
from typing import Any

from ramet.runtime.errors import NotBuilt

try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
except ImportError:  # macOS, Windows, or a machine that serves on its CPU only
    HAS_TRITON = False

    class _Unlaunchable:
        def __init__(self, function: Callable[..., object]) -> None:
            self.function = function

        def __getitem__(self, grid: object) -> Any:
            raise NotBuilt("a Triton kernel without triton", hint="Install triton, or choose the torch backend.")

    class _Language:
        constexpr = int

        def __getattr__(self, name: str) -> object:
            return None

    class _Triton:
        @staticmethod
        def jit(function: Callable[..., object]) -> _Unlaunchable:
            return _Unlaunchable(function)

        @staticmethod
        def cdiv(a: int, b: int) -> int:
            return -(-a // b)

        @staticmethod
        def next_power_of_2(n: int) -> int:
            return 1 << max(n - 1, 0).bit_length()

    triton: Any = _Triton()  # type: ignore[no-redef]
    tl: Any = _Language()  # type: ignore[no-redef]

__all__ = ["HAS_TRITON", "tl", "triton"]
