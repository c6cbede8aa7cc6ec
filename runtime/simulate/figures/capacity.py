"""S1, S1b: the hit rate of a block cache against its capacity, least recently used and clairvoyant (Mooncake traces).

S1 drives the real radix tree: a block is a page of one token, a request leases its match, inserts the rest and lets go;
then the tree evicts down to the capacity. S1b needs the future of single blocks, which no cache has, and is a heap.
"""

import heapq
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ramet.radix.eviction import LeastRecentlyUsed
from ramet.radix.tree import RadixTree
from ramet.runtime.simulate.figure import Figure, equal
from ramet.runtime.simulate.traces import BlockRequest, mooncake

BLOCK_TOKENS = 512
MILLIONS = (1, 3, 10, 30, 50, None)
"""Capacities in million tokens; None: unlimited."""
LRU_EXPECTED = {
    "conversation": (0.0533, 0.1361, 0.2852, 0.3588, 0.3635, 0.3664),
    "synthetic": (0.1424, 0.3094, 0.5666, 0.6396, 0.6396, 0.6396),
}
BELADY_EXPECTED = {
    "conversation": (0.2527, 0.3532, 0.3664, 0.3664),
    "synthetic": (0.3756, 0.5500, 0.6396, 0.6396),
}


def lru_hit_rate(requests: Sequence[BlockRequest], capacity: int | None) -> float:
    """Blocks found / blocks asked for, with room for `capacity` blocks between requests."""
    tree, order, fresh, num_hits = RadixTree(1, num_remembered_evictions=1), LeastRecentlyUsed(), itertools.count(), 0
    for request in requests:
        blocks = np.array(request.blocks, np.int32)
        with tree.lease(tree.match(blocks)) as lease:
            num_hits += lease.num_tokens
            new = blocks[lease.num_tokens :]
            tree.insert(lease, new, list(itertools.islice(fresh, len(new))))
        if capacity is not None:
            tree.evict(tree.statistics().num_pages - capacity, order)
    return num_hits / sum(len(request.blocks) for request in requests)


def belady_hit_rate(requests: Sequence[BlockRequest], capacity: int) -> float:
    """The same with eviction of the block whose next use is farthest, deepest first, new ones included."""
    next_uses = _next_uses(requests)
    cached: dict[int, float] = {}
    heap: list[tuple[float, int, int]] = []
    num_hits = 0
    for request, uses in zip(requests, next_uses, strict=True):
        num_hits += sum(1 for _ in itertools.takewhile(cached.__contains__, request.blocks))
        for depth, (block, use) in enumerate(zip(request.blocks, uses, strict=True)):
            cached[block] = use
            heapq.heappush(heap, (-use, -depth, block))
        while len(cached) > capacity:
            use, _, block = heapq.heappop(heap)
            if cached.get(block) == -use:
                del cached[block]
    return num_hits / sum(len(request.blocks) for request in requests)


def _next_uses(requests: Sequence[BlockRequest]) -> list[list[float]]:
    """For each block of each request, the index of the next request that asks for it."""
    upcoming: dict[int, int] = {}
    found: list[list[float]] = []
    for index in range(len(requests) - 1, -1, -1):
        found.append([upcoming.get(block, math.inf) for block in requests[index].blocks])
        upcoming.update(dict.fromkeys(requests[index].blocks, index))
    return found[::-1]


def s1(traces: Path, names: Sequence[str] = ("conversation", "synthetic")) -> Figure:
    values = {}
    for name in names:
        requests = mooncake(traces / "mooncake" / f"{name}_trace.jsonl")
        for millions in MILLIONS:
            values[_key(name, millions)] = lru_hit_rate(requests, _blocks(millions))
    checks = [
        equal(_key(name, millions), values[_key(name, millions)], expected, 0.00005)
        for name in names
        for millions, expected in zip(MILLIONS, LRU_EXPECTED[name], strict=True)
    ]
    title = "Mooncake: hit rate against capacity, least recently used, on the radix tree"
    return Figure(name="S1", title=title, values=values, checks=tuple(checks))


def s1b(traces: Path, names: Sequence[str] = ("conversation", "synthetic")) -> Figure:
    values, checks = {}, []
    for name in names:
        requests = mooncake(traces / "mooncake" / f"{name}_trace.jsonl")
        for millions, expected in zip(MILLIONS, BELADY_EXPECTED[name], strict=False):
            key = _key(name, millions)
            values[key] = belady_hit_rate(requests, _blocks(millions) or 0)
            checks.append(equal(key, values[key], expected, 0.00005))
    return Figure(name="S1b", title="The same, Belady's oracle", values=values, checks=tuple(checks))


def _blocks(millions: int | None) -> int | None:
    return None if millions is None else millions * 1_000_000 // BLOCK_TOKENS


def _key(name: str, millions: int | None) -> str:
    return f"{name}_unlimited" if millions is None else f"{name}_{millions}M"
