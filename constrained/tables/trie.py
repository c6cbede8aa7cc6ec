"""The byte trie of a vocabulary, flat, in preorder: what a mask is computed over.

Node 0 is the root. The nodes below n are n + 1 .. end[n] - 1, siblings in the order of their bytes, so a walk is one
scan that skips. Ids with equal bytes end in one node, and so always get the same bit.

byte          uint8 [N]      the byte on the edge into n
parent        int32 [N]
depth         int32 [N]      bytes from the root
end           int32 [N]      one past the last node below n
child_offset  int32 [N + 1]  children of n are children[child_offset[n] : child_offset[n + 1]]
children      int32 [N - 1]
single_token  int32 [N]      the id that ends in n, -1 none, -2 several
token_offset  int32 [N + 1]  ids that end in n are token_ids[token_offset[n] : token_offset[n + 1]]
token_ids     int32 [T]
plain         uint8 [N]      1 where all tokens at and below n are plain text: whole UTF-8, and no quotation mark,
                             backslash or control in it
plain_tokens  int32 [P]      the ids that are plain text
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
NO_NODES: Ints = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, eq=False, kw_only=True)
class Trie:
    """See the module."""

    byte: npt.NDArray[np.uint8]
    parent: Ints
    depth: Ints
    end: Ints
    child_offset: Ints
    children: Ints
    single_token: Ints
    token_offset: Ints
    token_ids: Ints
    plain: npt.NDArray[np.uint8]
    plain_tokens: Ints

    @property
    def num_nodes(self) -> int:
        return len(self.byte)

    def has_children(self, nodes: Ints) -> npt.NDArray[np.bool_]:
        """Of each node."""
        found: npt.NDArray[np.bool_] = self.end[nodes] > nodes + 1
        return found

    def children_of(self, nodes: Ints) -> tuple[Ints, Ints]:
        """All children of these nodes, and how many each has."""
        start = self.child_offset[nodes]
        counts = self.child_offset[nodes + 1] - start
        return self.children[spans(start, counts)], counts

    def tokens_of(self, nodes: Ints) -> Ints:
        """Ids that end in these nodes, in no order."""
        single = self.single_token[nodes]
        if not (single == -2).any():
            return single[single >= 0]
        start, end = self.token_offset[nodes], self.token_offset[nodes + 1]
        return self.token_ids[spans(start, end - start)]

    def find(self, data: bytes) -> int:
        """The node of these bytes, or -1."""
        node = 0
        for byte in data:
            first, last = self.child_offset[node], self.child_offset[node + 1]
            below = self.children[first:last]
            at = int(np.searchsorted(self.byte[below], byte))
            if at == len(below) or self.byte[below[at]] != byte:
                return -1
            node = int(below[at])
        return node

    def path(self, node: int) -> bytes:
        """The bytes from the root to a node."""
        found = bytearray()
        while node:
            found.append(int(self.byte[node]))
            node = int(self.parent[node])
        return bytes(reversed(found))


def _is_plain(data: bytes) -> bool:
    if b'"' in data or b"\\" in data or min(data) < 0x20:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def spans(starts: Ints, counts: Ints) -> Ints:
    """The concatenation of ranges: start, start + 1, ..., count of them, for each pair."""
    total = int(counts.sum())
    ends = np.cumsum(counts)
    shifts = np.repeat(starts - (ends - counts), counts)
    found: Ints = (np.arange(total, dtype=np.int32) + shifts).astype(np.int32, copy=False)
    return found


def build_trie(pieces: Sequence[tuple[bytes, int]]) -> Trie:
    """The trie of (bytes, id) pairs; bytes must not be empty. Level by level over the sorted pieces."""
    order = sorted(pieces)
    lengths = np.array([len(data) for data, _ in order], dtype=np.int64)
    text = np.frombuffer(b"".join(data for data, _ in order), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    node_of = np.zeros(len(order), dtype=np.int32)  # where each piece stands, so far
    levels: list[tuple[Ints, npt.NDArray[np.uint8]]] = []  # parents and bytes of each level's nodes
    num_nodes, depth = 1, 0
    alive = np.arange(len(order))
    while len(alive):
        above, symbol = node_of[alive], text[starts[alive] + depth]
        new = np.ones(len(alive), dtype=bool)
        new[1:] = (above[1:] != above[:-1]) | (symbol[1:] != symbol[:-1])
        node_of[alive] = num_nodes - 1 + np.cumsum(new)
        levels.append((above[new], symbol[new]))
        num_nodes += int(new.sum())
        depth += 1
        alive = alive[lengths[alive] > depth]
    return _in_preorder(levels, num_nodes, node_of, order)


def _in_preorder(
    levels: list[tuple[Ints, npt.NDArray[np.uint8]]], num_nodes: int, node_of: Ints, order: list[tuple[bytes, int]]
) -> Trie:
    """Renumber the nodes, which are in level order: a node comes after its parent and its elder siblings' trees."""
    parent = np.concatenate([np.zeros(1, np.int32), *(parents for parents, _ in levels)])
    byte = np.concatenate([np.zeros(1, np.uint8), *(symbols for _, symbols in levels)])
    cuts = np.cumsum([1, *(len(parents) for parents, _ in levels)]).tolist()
    size = np.ones(num_nodes, dtype=np.int64)
    for first, last in reversed(list(itertools.pairwise(cuts))):
        np.add.at(size, parent[first:last], size[first:last])
    number, depth = np.zeros(num_nodes, dtype=np.int64), np.zeros(num_nodes, dtype=np.int32)
    for level, (first, last) in enumerate(itertools.pairwise(cuts), start=1):
        above, before = parent[first:last], np.cumsum(size[first:last]) - size[first:last]
        eldest = np.ones(last - first, dtype=bool)
        eldest[1:] = above[1:] != above[:-1]
        family = np.cumsum(eldest) - 1
        number[first:last] = number[above] + 1 + before - before[eldest][family]
        depth[first:last] = level
    back = np.argsort(number)  # preorder -> level order
    return _finished(number, back, parent, byte, depth, size, number[node_of], order)


def _finished(
    number: npt.NDArray[np.int64],
    back: npt.NDArray[np.int64],
    parent: Ints,
    byte: npt.NDArray[np.uint8],
    depth: Ints,
    size: npt.NDArray[np.int64],
    node_of: npt.NDArray[np.int64],
    order: list[tuple[bytes, int]],
) -> Trie:
    num_nodes = len(parent)
    parents = number[parent][back].astype(np.int32)
    counts = np.bincount(parents[1:], minlength=num_nodes)
    num_tokens = np.bincount(node_of, minlength=num_nodes)
    tokens = np.array([token for _, token in order], dtype=np.int32)
    token_ids = tokens[np.argsort(node_of, kind="stable")]
    token_offset = _offsets(num_tokens)
    single = np.where(num_tokens == 0, -1, -2).astype(np.int32)
    ones = num_tokens == 1
    single[ones] = token_ids[token_offset[:-1][ones]]
    end = (np.arange(num_nodes) + size[back]).astype(np.int32)
    is_plain = np.array([_is_plain(data) for data, _ in order], dtype=bool)
    before = np.concatenate([[0], np.cumsum(np.bincount(node_of[~is_plain], minlength=num_nodes))])
    return Trie(
        byte=byte[back],
        parent=parents,
        depth=depth[back],
        end=end,
        child_offset=_offsets(counts),
        children=(1 + np.argsort(parents[1:], kind="stable")).astype(np.int32),
        single_token=single,
        token_offset=token_offset,
        token_ids=token_ids,
        plain=(before[end] == before[:num_nodes]).astype(np.uint8),
        plain_tokens=tokens[is_plain],
    )


def _offsets(counts: npt.NDArray[np.int64]) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
