"""The byte trie of a vocabulary, flat, in level order: what a mask is computed over.

Node 0 is the root. Children of a node are contiguous and sorted by byte, parents come before children, and ids with
equal bytes end in one node, so they always get the same bit.

first_child   int32 [N + 1]  children of n are first_child[n] .. first_child[n + 1] - 1
byte          uint8 [N]      the byte on the edge into n
parent        int32 [N]
token_offset  int32 [N + 1]  ids that end in n are token_ids[token_offset[n] : token_offset[n + 1]]
token_ids     int32 [T]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trie:
    """See the module."""

    first_child: Ints
    byte: npt.NDArray[np.uint8]
    parent: Ints
    token_offset: Ints
    token_ids: Ints
    single_token: Ints
    """The id that ends in a node, -1 for none, -2 for several."""

    @property
    def num_nodes(self) -> int:
        return len(self.byte)

    def tokens_of(self, nodes: Ints) -> Ints:
        """Ids that end in these nodes, in no order."""
        single = self.single_token[nodes]
        if not (single == -2).any():
            return single[single >= 0]
        start, end = self.token_offset[nodes], self.token_offset[nodes + 1]
        return self.token_ids[spans(start, end - start)]

    def path(self, node: int) -> bytes:
        """The bytes from the root to a node."""
        found = bytearray()
        while node:
            found.append(int(self.byte[node]))
            node = int(self.parent[node])
        return bytes(reversed(found))


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
    parents, symbols = [np.zeros(1, np.int32)], [np.zeros(1, np.uint8)]
    num_nodes = 1
    alive = np.arange(len(order))
    depth = 0
    while len(alive):
        above, symbol = node_of[alive], text[starts[alive] + depth]
        new = np.ones(len(alive), dtype=bool)
        new[1:] = (above[1:] != above[:-1]) | (symbol[1:] != symbol[:-1])
        node_of[alive] = num_nodes - 1 + np.cumsum(new)
        parents.append(above[new])
        symbols.append(symbol[new])
        num_nodes += int(new.sum())
        depth += 1
        alive = alive[lengths[alive] > depth]
    return _finished(np.concatenate(parents), np.concatenate(symbols), node_of, [token for _, token in order])


def _finished(parent: Ints, byte: npt.NDArray[np.uint8], node_of: Ints, tokens: list[int]) -> Trie:
    num_nodes = len(parent)
    counts = np.bincount(parent[1:], minlength=num_nodes)
    first_child = np.concatenate([[1], 1 + np.cumsum(counts)]).astype(np.int32)
    by_node = np.argsort(node_of, kind="stable")
    token_ids = np.array(tokens, dtype=np.int32)[by_node]
    num_tokens = np.bincount(node_of, minlength=num_nodes)
    token_offset = np.concatenate([[0], np.cumsum(num_tokens)]).astype(np.int32)
    single = np.where(num_tokens == 0, -1, -2).astype(np.int32)
    ones = num_tokens == 1
    single[ones] = token_ids[token_offset[:-1][ones]]
    return Trie(
        first_child=first_child,
        byte=byte,
        parent=parent.astype(np.int32),
        token_offset=token_offset,
        token_ids=token_ids,
        single_token=single,
    )
