"""Rows that share pages are grouped so that most reads are saved, and never wrongly."""

import itertools
import random

from ramet.radix.tree import RadixTree
from ramet.runtime.scheduler.groups import shared_groups


def held(tree: RadixTree, keys: list[list[int]], pages) -> list:
    leases = []
    for key in keys:
        lease = tree.lease(tree.match(key))
        rest = key[lease.num_tokens :]
        tree.insert(lease, rest, [next(pages) for _ in range(len(rest) // tree.page_size)])
        leases.append(lease)
    # splits move nodes under older leases: ask them all anew
    return [tree.lease(tree.match(key)) for key in keys]


def most_saved(keys: list[tuple[int, ...]]) -> int:
    """By trying every node of the trie as a group, or not."""
    best = 0

    def saved(depth: int, rows: list[tuple[int, ...]]) -> int:
        if len(rows) < 2:
            return 0
        common = depth
        while all(len(row) > common for row in rows) and len({row[common] for row in rows}) == 1:
            common += 1
        here = (len(rows) - 1) * common
        below = 0
        inside = [row for row in rows if len(row) > common]
        for _, group in itertools.groupby(sorted(inside), key=lambda row: row[common]):
            below += saved(common, list(group))
        return max(here, below)

    for _, group in itertools.groupby(sorted(keys), key=lambda row: row[0]):
        best += saved(0, list(group))
    return best


def test_the_split_saves_as_much_as_any() -> None:
    chooser = random.Random(3)
    for _ in range(200):
        tree = RadixTree(page_size=1)
        keys = [[chooser.randint(0, 1) for _ in range(chooser.randint(1, 7))] for _ in range(chooser.randint(2, 7))]
        leases = held(tree, keys, itertools.count())
        groups = shared_groups((row, lease.node) for row, lease in enumerate(leases))
        rows = [row for group in groups for row in group.rows]
        assert len(rows) == len(set(rows))
        for group in groups:
            assert len({tuple(keys[row][: group.num_shared_tokens]) for row in group.rows}) == 1
        assert sum((len(g.rows) - 1) * g.num_shared_tokens for g in groups) == most_saved([tuple(k) for k in keys])
