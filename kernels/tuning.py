"""Which blocks a Triton kernel takes: measured once per device and size, and remembered on disk.

    {cache}/ramet/tuning/{device}-{triton}.json      {"quantized_linear 576x1536x4": [16, 64, 64], ...}

`chosen(op, size, candidates, run)` gives the blocks for a size. Without `measure_blocks()` having been called, that is
what the file says, else the first candidate: nothing is ever timed unasked, nor while a graph is captured. A size says
nothing about the batch: blocks that changed with it would change a row's bits with its company.

The file is read once and replaced whole, so processes may write at the same time: the last one wins, none reads half a
file. One that cannot be read is as good as none. Timing has run with a stand-in only, on no GPU yet (docs/kernels.md).
"""

import contextlib
import functools
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from ramet.kernels._triton import HAS_TRITON, triton
from ramet.kernels.cpu.build import cache_folder

log = logging.getLogger(__name__)

Blocks = tuple[int, ...]
Timer = Callable[[Callable[[], object]], float]

_timer: Timer | None = None


@contextlib.contextmanager
def measure_blocks(timer: Timer | None = None) -> Iterator[None]:
    """While inside, sizes that the file lacks are measured. `timer`: seconds of a call; None: triton's own."""
    global _timer
    before, _timer = _timer, timer or _time_on_device
    try:
        yield
    finally:
        _timer = before


def chosen(
    op: str,
    size: Sequence[int],
    candidates: Sequence[Blocks],
    run: Callable[[Blocks], object],
    device: torch.device,
) -> Blocks:
    """The blocks of `op` for `size`. `run` launches with some blocks; one that fails to compile or fit is no choice."""
    book = _book(_device_name(device))
    known = book.blocks.get(name := f"{op} {'x'.join(map(str, size))}")
    if known is not None and known in candidates:
        return known
    if _timer is None or _is_capturing(device):
        return candidates[0]
    best = _fastest(name, candidates, run, _timer)
    book.keep(name, best)
    return best


def _fastest(name: str, candidates: Sequence[Blocks], run: Callable[[Blocks], object], timer: Timer) -> Blocks:
    seconds: dict[Blocks, float] = {}
    for blocks in candidates:
        try:
            seconds[blocks] = timer(functools.partial(run, blocks))
        except Exception as error:  # triton has many: out of shared memory, of registers, of patience
            log.info("no choice", extra={"kernel": name, "blocks": blocks, "why": str(error)[:200]})
    return min(seconds, key=lambda blocks: seconds[blocks]) if seconds else candidates[0]


class Book:
    """A file of choices. Anything in it that is no list of whole numbers is passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blocks: dict[str, Blocks] = self._read()

    def keep(self, name: str, blocks: Blocks) -> None:
        """Remember, here and, where the folder can be written, on disk; what others wrote since stays."""
        self.blocks = {**self._read(), **self.blocks, name: blocks}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
                json.dump(self.blocks, file, indent=1, sort_keys=True)
            os.replace(file.name, self.path)
        except OSError as error:
            log.warning("kernel choices are not kept: %s", error)

    def _read(self) -> dict[str, Blocks]:
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {name: tuple(blocks) for name, blocks in found.items() if _is_blocks(blocks)}


def _is_blocks(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and item > 0 for item in value)


@functools.lru_cache(maxsize=8)
def _book(device: str) -> Book:
    version = getattr(triton, "__version__", "none") if HAS_TRITON else "none"
    return Book(cache_folder() / "tuning" / f"{device}-{version}.json")


def _device_name(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _time_on_device(run: Callable[[], object]) -> float:
    from triton.testing import do_bench

    return float(do_bench(run)) / 1e3
