"""Carries KV pages between the pool and the disk tier: bytes on a thread of its own, tensors on the engine's.

    to_disk     the page's bytes are copied here and now (the pool may be written over afterwards); the thread writes
    from_disk   the thread reads and checks; `moved` copies what has come into its page

Reads go before writes. A page's bytes are its keys of all layers, then its values, then the scales of an int8 pool.
Decides nothing, and fails no step: what can't be read or written is told in `Moved`.
"""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ramet.runtime.models.batch import KVPool
from ramet.runtime.types import Moved, PageMove

log = logging.getLogger("ramet.kv")


class Store(Protocol):
    """Where pages are kept; `kv.page_folder.PageFolder`. Any thread."""

    def where(self, key: bytes) -> Literal["host", "disk"] | None: ...
    def read(self, key: bytes) -> memoryview | None: ...
    def write(self, key: bytes, content: bytes | memoryview) -> bool: ...
    def close(self) -> None: ...


class _Job(NamedTuple):
    """Smaller ones first: reads before writes, then by age."""

    rank: int
    number: int
    move: PageMove | None
    """None: the end."""
    content: memoryview | None


class _Came(NamedTuple):
    move: PageMove
    content: memoryview | None
    is_done: bool
    seconds: float
    tier: Literal["host", "disk"]


class PageMover:
    """See the module. `move`, `moved` and `close` are for one thread."""

    def __init__(self, kv: KVPool, store: Store) -> None:
        self._tensors: list[Tensor] = [*kv.keys, *kv.values, *(kv.key_scales or ()), *(kv.value_scales or ())]
        self._store = store
        self.page_bytes = page_bytes(kv)
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._came: queue.SimpleQueue[_Came] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="ramet-kv-disk", daemon=True)
        self._thread.start()

    def move(self, moves: Sequence[PageMove]) -> None:
        """Start them. What leaves the pool has been copied when this returns."""
        for move in moves:
            content = self._take(move.page) if move.direction == "to_disk" else None
            self._jobs.put(_Job(int(content is not None), next(self._numbers), move, content))

    def moved(self, wait_s: float = 0.0) -> list[Moved]:
        """What has ended since the last call; pages that were read are in the pool. Waits for the first so long."""
        found: list[Moved] = []
        try:
            came = self._came.get(timeout=wait_s) if wait_s > 0 else self._came.get_nowait()
            while True:
                found.append(self._arrive(came))
                came = self._came.get_nowait()
        except queue.Empty:
            return found

    def close(self) -> None:
        """Write what is in line, and end the thread."""
        if self._thread.is_alive():
            self._jobs.put(_Job(2, next(self._numbers), None, None))
            self._thread.join()
        self._store.close()

    # On the caller's thread ------------------------------------------------------------------------------------------

    def _take(self, page: int) -> memoryview:
        parts = [tensor[page].reshape(-1).view(torch.uint8) for tensor in self._tensors]
        return memoryview(torch.cat(parts).cpu().numpy())  # type: ignore[arg-type]

    def _arrive(self, came: _Came) -> Moved:
        is_done, began = came.is_done, time.perf_counter()
        if came.content is not None:
            is_done = self._put(came.move.page, came.content)
        return Moved(came.move.slot, is_done, came.seconds + time.perf_counter() - began, came.tier)

    def _put(self, page: int, content: memoryview) -> bool:
        if len(content) != self.page_bytes:  # its name says that it is of this shape: a bug, or a forged file
            log.warning("a page of the disk tier has %d bytes instead of %d", len(content), self.page_bytes)
            return False
        data = torch.from_numpy(np.frombuffer(content, np.uint8)) if not content.readonly else _copied(content)
        at = 0
        for tensor in self._tensors:
            target = tensor[page]
            end = at + target.numel() * target.element_size()
            target.copy_(data[at:end].view(tensor.dtype).view(target.shape))
            at = end
        return True

    # On its own ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._jobs.get()).move is not None:
            self._came.put(self._work(job.move, job.content))

    def _work(self, move: PageMove, content: memoryview | None) -> _Came:
        began, tier = time.perf_counter(), self._store.where(move.key)
        try:
            if content is not None:
                is_done, read = self._store.write(move.key, content), None
            else:
                read = self._store.read(move.key)
                is_done = read is not None
        except Exception:  # whatever a store does, the engine goes on without it
            log.exception("the disk tier failed")
            is_done, read = False, None
        return _Came(move, read, is_done, time.perf_counter() - began, tier or "disk")


def _copied(content: memoryview) -> Tensor:
    """torch takes no memory that it may not write."""
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8))


def page_bytes(kv: KVPool) -> int:
    """Of one page, all layers."""
    tensors = [*kv.keys, *kv.values, *(kv.key_scales or ()), *(kv.value_scales or ())]
    return sum(tensor[0].numel() * tensor.element_size() for tensor in tensors)
