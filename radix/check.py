"""Proof of the radix tree's invariants, by walking all of it. For tests, and for an idle engine.

I1  a label is a whole, non-zero number of pages    I4  leased + evictable == pages held
I2  siblings differ in their first page             I5  a page id occurs once
I3  the parent of a held node is held               I6  candidates are exactly the unheld leaves
I7  hashes, depths and readers agree with the path
"""

from collections.abc import Collection

import numpy as np

from ramet.radix.key import add_hashes, prefix_hash
from ramet.radix.lease import Lease
from ramet.radix.node import Node
from ramet.radix.tree import RadixTree


def check(tree: RadixTree, leases: Collection[Lease] | None = None) -> None:
    """Raise AssertionError, naming the invariant, if the tree is broken. Where all `leases` in the world are given, the
    counts of holds are proved too. O(pages)."""
    nodes = list(tree.nodes())
    for node in nodes:
        _check_edge(node, tree.page_size)
        _check_children(node, tree.page_size)
        _check_holds(node, leases)
    _check_counts(tree, [node for node in nodes if node.parent is not None])
    leaves = {id(node) for node in nodes if node.parent is not None and not node.children and node.holds == 0}
    assert {id(node) for node in tree.candidates()} == leaves, "I6: candidates are not the unheld leaves"


def _check_edge(node: Node, page_size: int) -> None:
    assert node.is_alive, "a dead node hangs in the tree"
    if node.parent is None:
        assert len(node.label) == 0 and node.start == 0 and node.hash_after == 0, "a root has no tokens"
        assert node.children or node.holds, "a root that nobody needs was kept"
        return
    assert len(node.label) > 0 and len(node.label) == node.num_pages * page_size, f"I1: {len(node.label)} tokens"
    assert node.start == node.parent.end, "I7: a node does not begin where its parent ends"
    assert node.namespace == node.parent.namespace, "I7: a node has another namespace than its parent"
    expected = add_hashes(node.parent.hash_after, prefix_hash(node.label, node.start))
    assert node.hash_after == expected, "I7: a prefix hash is wrong"


def _check_children(node: Node, page_size: int) -> None:
    for first_page, child in node.children.items():
        assert child.parent is node, "a child has another parent"
        assert child.label[:page_size].tobytes() == first_page, "I2: a child stands under another first page"


def _check_holds(node: Node, leases: Collection[Lease] | None) -> None:
    num_held_children = sum(child.holds > 0 for child in node.children.values())
    assert node.holds >= num_held_children, "I3: a held node's parent is not held"
    if leases is not None:
        num_leases = sum(lease.node is node and not lease.is_released for lease in leases)
        assert node.holds == num_held_children + num_leases, "I3: holds are not leases plus held children"


def _check_counts(tree: RadixTree, nodes: list[Node]) -> None:
    statistics = tree.statistics()
    leased = sum(node.num_pages for node in nodes if node.holds)
    evictable = sum(node.num_pages for node in nodes if not node.holds)
    assert statistics.num_leased_pages == leased, f"I4: {statistics.num_leased_pages} leased, counted {leased}"
    assert statistics.num_evictable_pages == evictable, f"I4: {statistics.num_evictable_pages}, counted {evictable}"
    assert statistics.num_pages == leased + evictable and statistics.num_nodes == len(nodes), "I4: totals are off"
    pages = np.concatenate([node.pages for node in nodes]) if nodes else np.empty(0, np.int32)
    assert len(np.unique(pages)) == len(pages), "I5: a page id occurs twice"
    for node in nodes:
        for reader in node.readers:
            assert tree.reader_depth(reader) == node.end, "I7: a reader's place is not where the node says"
