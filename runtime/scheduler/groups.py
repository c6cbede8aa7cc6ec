"""Which rows of a step read the same leading pages: attention reads those once. Knows tree nodes and counts.

Rows with a common node on their path share everything above its end. A row is in one group at most, so where groups
nest the split that saves most reads is chosen: (rows - 1) * shared tokens. Each node of the rows' paths is looked at
once, on the way up; all else is done for the few *junctions*, where a row ends or paths meet. Between two junctions the
rows are the same, and the lowest node saves most.
"""

from collections.abc import Iterable

from ramet.radix.node import Node
from ramet.runtime.types import RowGroup


class _Junction:
    """A node at which rows end, or paths of several rows meet."""

    __slots__ = ("above", "group", "is_chosen", "node", "num_rows", "num_saved_below", "rows")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rows: list[int] = []
        """That end here."""
        self.num_rows = 0
        """That end here or below."""
        self.num_saved_below = 0
        self.is_chosen = False
        self.above: _Junction | None = None
        self.group: list[int] | None = None


def shared_groups(ends: Iterable[tuple[int, Node]]) -> list[RowGroup]:
    """Groups among rows, given as (row, node at the end of its leased path)."""
    below_first = _linked(ends)
    for junction in below_first:
        _choose(junction)
    groups: list[tuple[Node, list[int]]] = []
    for junction in reversed(below_first):
        above = junction.above
        junction.group = above.group if above is not None else None
        if junction.group is None and junction.is_chosen:
            junction.group = []
            groups.append((junction.node, junction.group))
        if junction.group is not None:
            junction.group.extend(junction.rows)
    return [RowGroup(tuple(sorted(rows)), node.end) for node, rows in groups]


def _linked(ends: Iterable[tuple[int, Node]]) -> list[_Junction]:
    """All junctions, those below before those above, each knowing the next one above it."""
    found: dict[Node, _Junction] = {}
    seen: set[Node] = set()
    segments: list[list[Node]] = []
    for row, end in ends:
        junction = found.get(end)
        if junction is None:
            junction = found[end] = _Junction(end)
            node, segment = end, list[Node]()
            while node.parent is not None and node not in seen:
                seen.add(node)
                segment.append(node)
                node = node.parent
            segments.append(segment)
            if node.parent is not None and node not in found:
                found[node] = _Junction(node)  # a path met one that was walked before
        junction.rows.append(row)
    below_first: list[_Junction] = []
    for segment in reversed(segments):  # a path is walked up to an earlier one: later ones lie below
        last: _Junction | None = None
        for node in segment:
            here = found.get(node)
            if here is not None:
                if last is not None:
                    last.above = here
                below_first.append(here)
                last = here
        if last is not None and segment:
            last.above = found.get(segment[-1].parent) if segment[-1].parent is not None else None
    return below_first


def _choose(junction: _Junction) -> None:
    """Grouping here is chosen if it saves at least as much as grouping anywhere below."""
    junction.num_rows += len(junction.rows)
    num_saved = (junction.num_rows - 1) * junction.node.end
    junction.is_chosen = num_saved > 0 and num_saved >= junction.num_saved_below
    if junction.above is not None:
        junction.above.num_rows += junction.num_rows
        junction.above.num_saved_below += max(num_saved, junction.num_saved_below)
