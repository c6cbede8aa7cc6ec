"""In which order cached pages go. Integers and the time it is given; knows no leases and no tokens.

Candidates are the leaves that no lease holds. An order gives each a rank, smallest first. The ranks stand in a heap
whose entries carry the node's generation: a node that stops being a candidate bumps its generation, and its entry is
dropped when it surfaces, so each eviction costs O(log candidates).
"""

import heapq
import math
from collections.abc import Iterator
from typing import ClassVar, Protocol

from ramet.radix.node import Node


class EvictionOrder(Protocol):
    """Which candidate goes first."""

    @property
    def name(self) -> str:
        """Told to whoever asks why something was evicted."""
        ...

    @property
    def refresh_s(self) -> float:
        """For how many seconds a rank stays good enough to order by; infinite where it does not depend on time."""
        ...

    def rank(self, node: Node, now: float) -> float:
        """The smallest goes first. Equal ranks go in the order in which they became candidates."""
        ...


class LeastRecentlyUsed:
    """The leaf whose last lease ended longest ago; what was superseded before all else."""

    name: ClassVar[str] = "lru"
    refresh_s: ClassVar[float] = math.inf

    def rank(self, node: Node, now: float) -> float:
        return -math.inf if node.is_superseded else node.last_used


class Candidates:
    """The evictable leaves, ready to be popped in the order that was last asked for."""

    def __init__(self) -> None:
        self._nodes: dict[Node, None] = {}
        self._order: EvictionOrder | None = None
        self._ranked_at = -math.inf
        self._heap: list[tuple[float, int, int, Node]] = []
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def add(self, node: Node, now: float) -> None:
        """`node` became a leaf that nobody holds, or its rank changed."""
        self.remove(node)
        self._nodes[node] = None
        if self._order is not None:
            self._push(node, self._order.rank(node, now))

    def remove(self, node: Node) -> None:
        """`node` was leased, grew a child or died. Nothing happens to a node that is no candidate."""
        if node in self._nodes:
            del self._nodes[node]
            node.generation += 1

    def pop(self, order: EvictionOrder, now: float) -> tuple[Node, float] | None:
        """The first candidate and its rank, which is a candidate no more; None where there is none."""
        self._refresh(order, now)
        while self._heap:
            rank, _, generation, node = heapq.heappop(self._heap)
            if node.generation == generation and node in self._nodes:
                self.remove(node)
                return node, rank
        return None

    def put_back(self, node: Node, rank: float) -> None:
        """Undo a pop: the node stays first in line at its old rank."""
        self._nodes[node] = None
        self._num_pushed += 1
        heapq.heappush(self._heap, (rank, -self._num_pushed, node.generation, node))

    def _refresh(self, order: EvictionOrder, now: float) -> None:
        is_stale = order is not self._order or now - self._ranked_at > order.refresh_s
        if not is_stale and len(self._heap) <= 64 + 2 * len(self._nodes):
            return
        self._order, self._ranked_at = order, now
        self._heap.clear()
        for node in self._nodes:
            self._push(node, order.rank(node, now))

    def _push(self, node: Node, rank: float) -> None:
        self._num_pushed += 1
        heapq.heappush(self._heap, (rank, self._num_pushed, node.generation, node))
