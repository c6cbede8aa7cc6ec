"""Which rows of a step read the same leading pages: attention reads those once. Knows tree nodes and counts.

Rows with a common node on their path share everything above its end. A row is in one group at most, so where groups
nest the split that saves most reads is chosen: (rows - 1) * shared tokens.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ramet.radix.lease import path_nodes
from ramet.radix.node import Node
from ramet.runtime.types import RowGroup


class _Split(NamedTuple):
    num_saved: int
    groups: list[RowGroup]


def shared_groups(ends: Iterable[tuple[int, Node]]) -> list[RowGroup]:
    """Groups among rows, given as (row, node at the end of its leased path)."""
    rows_below: dict[Node, list[int]] = defaultdict(list)
    children: dict[Node, dict[Node, None]] = defaultdict(dict)
    tops: dict[Node, None] = {}
    for row, end in ends:
        above: Node | None = None
        for node in path_nodes(end):
            rows_below[node].append(row)
            (tops if above is None else children[above])[node] = None
            above = node
    return [group for top in tops for group in _best_split(top, rows_below, children).groups]


def _best_split(top: Node, rows_below: dict[Node, list[int]], children: dict[Node, dict[Node, None]]) -> _Split:
    """Of the rows through `top`: all in one group, or the best groups further down."""
    path, node = [top], top
    while len(children[node]) == 1 and len(rows_below[next(iter(children[node]))]) == len(rows_below[top]):
        node = next(iter(children[node]))  # all rows go on together
        path.append(node)
    rows = rows_below[top]
    if len(rows) < 2:
        return _Split(0, [])
    here = _Split((len(rows) - 1) * node.end, [RowGroup(tuple(rows), node.end)])
    below = [_best_split(child, rows_below, children) for child in children[node]]
    num_saved_below = sum(split.num_saved for split in below)
    if here.num_saved >= num_saved_below:
        return here
    return _Split(num_saved_below, [group for split in below for group in split.groups])
