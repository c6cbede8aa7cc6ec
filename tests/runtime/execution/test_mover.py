"""Pages leave the pool and come back bit for bit, of every dtype; what can't be read leaves the pool alone."""

import time
from typing import Any, Literal

import pytest
import torch

from ramet.runtime.execution.mover import PageMover, page_bytes
from ramet.runtime.models.batch import KVPool
from ramet.runtime.types import PageMove


class Memory:
    """A store; `bad` keys can't be read."""

    def __init__(self) -> None:
        self.pages: dict[bytes, bytes] = {}
        self.order: list[str] = []
        self.is_closed = False

    def where(self, key: bytes) -> Literal["host", "disk"] | None:
        return "host" if key in self.pages else None

    def read(self, key: bytes) -> memoryview | None:
        self.order.append(f"read {key.decode()}")
        if key == b"broken":
            raise RuntimeError("the store is broken")
        return memoryview(bytearray(self.pages[key])) if key in self.pages else None

    def write(self, key: bytes, content: bytes | memoryview) -> bool:
        time.sleep(0.01)
        self.order.append(f"write {key.decode()}")
        self.pages[key] = bytes(content)
        return True

    def close(self) -> None:
        self.is_closed = True


def pool(dtype: torch.dtype, num_pages: int = 5) -> KVPool:
    g = torch.Generator().manual_seed(0)

    def tensors() -> list[torch.Tensor]:
        return [torch.randint(-100, 100, (num_pages, 4, 2, 8), generator=g).to(dtype) for _ in range(3)]

    if dtype != torch.int8:
        return KVPool(keys=tensors(), values=tensors())
    scales = [torch.rand((num_pages, 4, 2), generator=g).half() for _ in range(6)]
    return KVPool(keys=tensors(), values=tensors(), key_scales=scales[:3], value_scales=scales[3:])


def all_tensors(kv: KVPool) -> list[torch.Tensor]:
    return [*kv.keys, *kv.values, *(kv.key_scales or ()), *(kv.value_scales or ())]


def settle(mover: PageMover, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + 5
    while len(found) < count and time.monotonic() < deadline:
        found += mover.moved(0.05)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_a_page_comes_back_bit_for_bit_into_another(dtype: torch.dtype) -> None:
    kv, store = pool(dtype), Memory()
    before = [tensor.clone() for tensor in all_tensors(kv)]
    mover = PageMover(kv, store)
    mover.move([PageMove(1, 0, "to_disk", b"a")])
    for tensor in all_tensors(kv):
        tensor[1] = 7  # taken already: what comes now does not count
    assert [(each.slot, each.is_done) for each in settle(mover, 1)] == [(0, True)]
    assert len(store.pages[b"a"]) == page_bytes(kv) == mover.page_bytes
    mover.move([PageMove(3, 1, "from_disk", b"a")])
    (moved,) = settle(mover, 1)
    assert moved.is_done and moved.seconds > 0 and moved.tier == "host"
    for now, was in zip(all_tensors(kv), before, strict=True):
        assert torch.equal(now[3], was[1])
        assert torch.equal(now[[0, 2, 4]], was[[0, 2, 4]])
    mover.close()
    assert store.is_closed


def test_what_is_not_there_broken_or_of_another_size_is_told_and_changes_nothing() -> None:
    kv, store = pool(torch.float32), Memory()
    store.pages[b"short"] = b"123"
    before = [tensor.clone() for tensor in all_tensors(kv)]
    mover = PageMover(kv, store)
    mover.move([PageMove(1, slot, "from_disk", key) for slot, key in enumerate((b"gone", b"broken", b"short"))])
    assert sorted(each.slot for each in settle(mover, 3) if not each.is_done) == [0, 1, 2]
    assert all(torch.equal(now, was) for now, was in zip(all_tensors(kv), before, strict=True))
    mover.close()


def test_reads_go_before_writes_and_the_end_waits_for_both() -> None:
    kv, store = pool(torch.float32), Memory()
    store.pages[b"r"] = bytes(page_bytes(kv))
    mover = PageMover(kv, store)
    mover.move([PageMove(1, slot, "to_disk", b"%d" % slot) for slot in range(4)])
    mover.move([PageMove(2, 9, "from_disk", b"r")])
    mover.close()
    assert store.order.index("read r") < 2 and len(store.order) == 5
