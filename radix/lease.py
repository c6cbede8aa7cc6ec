"""A counted hold on a path of the tree. Integers only."""

from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from ramet.radix.node import Cursor, Node, PageIds

if TYPE_CHECKING:
    from ramet.radix.tree import RadixTree


class Lease:
    """While it is held, no page of the path from the root down to its end is evicted. Made by `RadixTree.lease`, moved
    down by `RadixTree.insert`. `release` may be called any number of times; a `with` block calls it too."""

    __slots__ = ("_is_released", "_tree", "node")

    def __init__(self, tree: "RadixTree", node: Node) -> None:
        self._tree, self._is_released = tree, False
        self.node = node
        """The node at whose end the held path ends."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the held path, whole pages."""
        return self.node.end

    @property
    def is_released(self) -> bool:
        return self._is_released

    @property
    def cursor(self) -> Cursor:
        """The end of the held path, to match on from, now or after the release."""
        return Cursor(self.node, self.node.end)

    def pages(self) -> PageIds:
        """int32 [num_tokens / page_size]  the path's pages from the root down; O(pages)."""
        return path_pages(self.cursor, self._tree.page_size)

    def release(self) -> None:
        """Let go. What nobody else holds becomes evictable."""
        if not self._is_released:
            self._is_released = True
            self._tree.end_lease(self)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def path_nodes(node: Node) -> list[Node]:
    """The nodes from below the root down to `node`."""
    nodes = []
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]


def path_pages(cursor: Cursor, page_size: int) -> PageIds:
    """The pages that hold the first `cursor.num_tokens` tokens of its path."""
    pieces = [node.pages for node in path_nodes(cursor.node)]
    pages = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
    return pages[: cursor.num_tokens // page_size]
