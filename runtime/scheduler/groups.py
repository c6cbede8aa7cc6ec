"""Which rows of a step read the same leading pages: attention reads those once. Knows tree nodes and counts.

Rows with a common node on their path share everything above its end. A row is in one group at most, so where groups
nest the split that saves most reads is chosen: (rows - 1) * shared tokens. One pass up the tree and one down.
"""

from collections import defaultdict
from collections.abc import Iterable

from ramet.radix.node import Node
from ramet.runtime.types import RowGroup


def shared_groups(ends: Iterable[tuple[int, Node]]) -> list[RowGroup]:
    """Groups among rows, given as (row, node at the end of its leased path)."""
    rows_at: dict[Node, list[int]] = defaultdict(list)
    for row, end in ends:
        rows_at[end].append(row)
    below_first = sorted(_with_ancestors(rows_at), key=lambda node: node.start, reverse=True)
    chosen = _choose(below_first, rows_at)
    group_of: dict[Node, Node | None] = {}
    rows_of: dict[Node, list[int]] = defaultdict(list)
    for node in reversed(below_first):
        above = group_of.get(node.parent) if node.parent is not None else None
        group = group_of[node] = above or (node if node in chosen else None)
        if group is not None and node in rows_at:
            rows_of[group].extend(rows_at[node])
    return [RowGroup(tuple(sorted(rows)), node.end) for node, rows in rows_of.items()]


def _with_ancestors(ends: Iterable[Node]) -> set[Node]:
    """All nodes on the paths, the roots left out."""
    found: set[Node] = set()
    for end in ends:
        node = end
        while node.parent is not None and node not in found:
            found.add(node)
            node = node.parent
    return found


def _choose(below_first: list[Node], rows_at: dict[Node, list[int]]) -> set[Node]:
    """Nodes at which grouping saves at least as much as grouping anywhere below."""
    num_rows: dict[Node, int] = defaultdict(int)
    num_saved_below: dict[Node, int] = defaultdict(int)
    chosen: set[Node] = set()
    for node in below_first:
        num_rows[node] += len(rows_at.get(node, ()))
        num_saved = (num_rows[node] - 1) * node.end
        if num_saved > 0 and num_saved >= num_saved_below[node]:
            chosen.add(node)
        if node.parent is not None:
            num_rows[node.parent] += num_rows[node]
            num_saved_below[node.parent] += max(num_saved, num_saved_below[node])
    return chosen
