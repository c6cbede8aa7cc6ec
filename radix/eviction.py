"""In which order cached pages go. Integers and the time it is given; knows no leases and no tokens.

Candidates are the leaves that no lease holds. An order gives each a rank, smallest first. The ranks stand in a heap
whose entries carry the node's generation: a node that stops being a candidate bumps its generation, and its entry is
dropped when it surfaces, so each eviction costs O(log candidates). Where ranks depend on time, either all are made anew
once they are stale, or the order says for each how long it is good (`Ageing`), and only those that are due are.
"""

import heapq
import math
from collections.abc import Iterator
from typing import ClassVar, Protocol, runtime_checkable

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


@runtime_checkable
class Ageing(Protocol):
    """What an order may have besides: its ranks change the slower the older they are. Whoever knows of an event that
    changes one at once says so (`RadixTree.revalue`)."""

    def good_for_s(self, node: Node, now: float) -> float:
        """For how many seconds the rank that the node has now is good enough."""
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
        self._ageing: Ageing | None = None
        self._ranked_at = self._asked_at = -math.inf
        self._heap: list[tuple[float, int, int, Node]] = []
        self._due: list[tuple[float, int, int, Node]] = []
        """When ranks stop being good; empty where they all do at once, or never."""
        self._num_pushed = 0
        self.num_ranked = 0
        """Ranks computed since the start: what an order costs."""

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
            self._rank(node, self._order, now)

    def remove(self, node: Node) -> None:
        """`node` was leased, grew a child or died. Nothing happens to a node that is no candidate."""
        if node in self._nodes:
            del self._nodes[node]
            node.generation += 1

    def pop(self, order: EvictionOrder, now: float) -> tuple[Node, float] | None:
        """The first candidate and its rank, which is a candidate no more; None where there is none."""
        self._asked_at = now
        self._refresh(order, now)
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                rank, _, _, node = entry
                self.remove(node)
                return node, rank
        return None

    def put_back(self, node: Node, rank: float) -> None:
        """Undo a pop: the node stays first in line at its old rank, until that is good no more."""
        self._nodes[node] = None
        self._num_pushed += 1
        heapq.heappush(self._heap, (rank, -self._num_pushed, node.generation, node))
        self._note_due(node, self._asked_at)

    def _refresh(self, order: EvictionOrder, now: float) -> None:
        if order is not self._order or (self._ageing is None and now - self._ranked_at > order.refresh_s):
            self._order, self._ranked_at = order, now
            self._ageing = order if isinstance(order, Ageing) else None
            self._heap.clear()
            self._due.clear()
            for node in self._nodes:
                self._rank(node, order, now)
            return
        while self._due and self._due[0][0] <= now:
            entry = heapq.heappop(self._due)
            if self._is_current(entry):
                node = entry[-1]
                node.generation += 1
                self._rank(node, order, now)
        self._heap, self._due = self._without_the_old(self._heap), self._without_the_old(self._due)

    def _without_the_old(self, heap: list[tuple[float, int, int, Node]]) -> list[tuple[float, int, int, Node]]:
        """The heap, made anew where most of its entries mean nothing any more."""
        if len(heap) <= 64 + 2 * len(self._nodes):
            return heap
        kept = [entry for entry in heap if self._is_current(entry)]
        heapq.heapify(kept)
        return kept

    def _is_current(self, entry: tuple[float, int, int, Node]) -> bool:
        _, _, generation, node = entry
        return node.generation == generation and node in self._nodes

    def _rank(self, node: Node, order: EvictionOrder, now: float) -> None:
        self._num_pushed += 1
        self.num_ranked += 1
        heapq.heappush(self._heap, (order.rank(node, now), self._num_pushed, node.generation, node))
        self._note_due(node, now)

    def _note_due(self, node: Node, now: float) -> None:
        if self._ageing is not None:
            due = now + self._ageing.good_for_s(node, now)
            if due < math.inf:
                heapq.heappush(self._due, (due, self._num_pushed, node.generation, node))
