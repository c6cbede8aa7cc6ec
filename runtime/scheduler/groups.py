"""Which rows of a step read the same leading pages: attention reads those once. Knows tree nodes and counts.

Rows with a common node on their path share everything above its end. A row is in one group at most, so where groups
nest the split that saves most reads is chosen: (rows - 1) * shared tokens. Each node of the rows' paths is looked at
once, on the way up; all else is done for the few *junctions*, where a row ends or paths meet. Between two junctions the
rows are the same, and the lowest node saves most.
"""

from collections.abc import Iterable
from itertools import pairwise

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
    """All junctions, those below before those above, each knowing the next one above it. A path is walked up to the
    first node that an earlier path went through: so nodes fall into segments, and later segments lie below."""
    found: dict[Node, _Junction] = {}
    segment_of: dict[Node, int] = {}
    junctions_in: list[list[_Junction]] = []
    met_at: list[_Junction | None] = []
    for row, end in ends:
        junction = found.get(end)
        if junction is None:
            junction = found[end] = _Junction(end)
            place = segment_of.get(end)
            if place is not None:
                junctions_in[place].append(junction)  # it ends on a path that was walked before
            elif (above := end.parent) is not None:
                place, node = len(junctions_in), end
                while above is not None and node not in segment_of:
                    segment_of[node] = place
                    node, above = above, above.parent
                junctions_in.append([junction])
                met_at.append(_meet(node, found, junctions_in, segment_of) if above is not None else None)
        junction.rows.append(row)
    below_first: list[_Junction] = []
    for place in range(len(junctions_in) - 1, -1, -1):
        line = junctions_in[place]
        if len(line) > 1:
            line.sort(key=_start, reverse=True)
            for below, above_it in pairwise(line):
                below.above = above_it
        line[-1].above = met_at[place]
        below_first += line
    return below_first


def _meet(
    node: Node, found: dict[Node, _Junction], junctions_in: list[list[_Junction]], segment_of: dict[Node, int]
) -> _Junction:
    """The junction at a node that a path met on its way up."""
    junction = found.get(node)
    if junction is None:
        junction = found[node] = _Junction(node)
        junctions_in[segment_of[node]].append(junction)
    return junction


def _start(junction: _Junction) -> int:
    return junction.node.start


def _choose(junction: _Junction) -> None:
    """Grouping here is chosen if it saves at least as much as grouping anywhere below."""
    junction.num_rows += len(junction.rows)
    num_saved = (junction.num_rows - 1) * junction.node.end
    junction.is_chosen = num_saved > 0 and num_saved >= junction.num_saved_below
    if junction.above is not None:
        junction.above.num_rows += junction.num_rows
        junction.above.num_saved_below += max(num_saved, junction.num_saved_below)
