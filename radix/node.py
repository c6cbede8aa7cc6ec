"""A node of the radix tree: an edge label of whole pages and what hangs below it. A record; the tree alone changes it.

Two facts carry the design. A node's tokens and pages at a given depth never change while it lives: labels grow at their
end, are trimmed at their end, and a trimmed label never grows again. And when an edge is split the *lower* part keeps
the object, so whoever points at a node (a lease, a cursor, a reader) still points at where it was.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramet.radix.key import Tokens

PageIds = NDArray[np.int32]
"""int32 [n]  page ids in the order of the tokens they hold"""


@dataclass(slots=True, eq=False)
class Node:
    """Tokens [start, end) of a path, and the pages that hold them. A root has no parent, no tokens and no pages."""

    parent: "Node | None"
    label: Tokens
    """int32 [num_pages * page_size]"""
    pages: PageIds
    """int32 [num_pages]"""
    start: int
    """Tokens above this node."""
    hash_after: int
    """`prefix_hash` of all tokens down to this node's end."""
    namespace: str
    """Of the root above."""
    last_used: float = 0.0
    """Time of the last lease or release at this node; inherits that of a child that is evicted."""
    owner: str = ""
    """The program that computed it."""
    children: "dict[bytes, Node]" = field(default_factory=dict)
    """By the bytes of their first page."""
    holds: int = 0
    """Leases that end here plus children that are held: 0 means that no lease lies at or below this node."""
    value: float = 1.0
    """Multiplies what an eviction order thinks this node is worth."""
    readers: tuple[str, ...] = ()
    """Programs in a gap whose path ends here, or ended below before that was evicted."""
    generation: int = 0
    """Counts its removals from the candidates, so that old heap entries are known to be old."""
    is_alive: bool = True
    was_trimmed: bool = False
    is_superseded: bool = False
    """Newer state has taken its place, and nobody has leased it since: it goes first."""

    @property
    def end(self) -> int:
        """Tokens down to this node's end."""
        return self.start + len(self.label)

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    @property
    def is_root(self) -> bool:
        return self.parent is None


class Cursor(NamedTuple):
    """A place on a path: `num_tokens` tokens deep, at or above the end of `node`. Stays usable whatever happens to the
    tree: what was evicted since is simply no longer matched."""

    node: Node
    num_tokens: int

    @property
    def namespace(self) -> str:
        return self.node.namespace


class PartialPage(NamedTuple):
    """The page that a match ends inside of: its first `num_tokens` tokens equal the key's next ones. Copy its head into
    a page of your own, in the step that plans it, and compute on from there."""

    page: int
    num_tokens: int
