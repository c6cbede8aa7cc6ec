"""Random operations against a dict: whatever happens in whatever order, the tree and the dict agree."""

import itertools
from typing import ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ramet.radix.check import check
from ramet.radix.eviction import LeastRecentlyUsed
from ramet.radix.lease import Lease
from ramet.radix.node import Cursor
from ramet.radix.tree import RadixTree

Key = tuple[int, ...]


class TreeMachine(RuleBasedStateMachine):
    """The model is {(namespace, whole-page prefix): page}. Keys are pieces of few kinds, so that paths often meet and
    part inside pages."""

    page_size: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree(self.page_size)
        self.pages: dict[tuple[str, Key], int] = {}
        self.fresh = itertools.count()
        self.leases: list[tuple[Lease, str, Key]] = []
        self.cursors: list[tuple[Cursor, str, Key]] = []
        self.order = LeastRecentlyUsed()

    def key(self, pieces: list[int]) -> Key:
        """Pieces of two thirds of a page: boundaries of pieces and of pages rarely meet."""
        length = max(1, 2 * self.page_size // 3)
        return tuple(token for piece in pieces for token in (0,) * (length - 1) + (piece,))

    def wholes(self, key: Key) -> list[Key]:
        return [key[:end] for end in range(self.page_size, len(key) + 1, self.page_size)]

    def held(self, namespace: str, key: Key) -> list[int]:
        found = [self.pages.get((namespace, whole)) for whole in self.wholes(key)]
        return [page for page in itertools.takewhile(lambda page: page is not None, found) if page is not None]

    def longest_shared(self, namespace: str, key: Key) -> int:
        """Tokens that `key` shares with the best cached path, to the token."""
        lengths = [0]
        for space, whole in self.pages:
            if space == namespace:
                pairs = zip(key, whole, strict=False)
                lengths.append(sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return max(lengths)

    PIECES = st.lists(st.integers(0, 2), max_size=9)
    SPACES = st.sampled_from(["", "", "", "other"])

    @rule(pieces=PIECES, namespace=SPACES, keep=st.booleans())
    def insert(self, pieces: list[int], namespace: str, keep: bool) -> None:
        key = self.key(pieces)
        lease = self.tree.lease(self.tree.match(key, namespace))
        start = lease.num_tokens
        new = [whole for whole in self.wholes(key) if len(whole) > start]
        offered = [next(self.fresh) for _ in new]
        inserted = self.tree.insert(lease, key[start : start + len(new) * self.page_size], offered)
        assert inserted.duplicates == [] and inserted.pages.tolist() == offered
        self.pages.update({(namespace, whole): page for whole, page in zip(new, offered, strict=True)})
        self.keep_or_release(lease, namespace, key[: lease.num_tokens], keep)

    @rule(pieces=PIECES, index=st.integers(0, 9), keep=st.booleans())
    def insert_below_an_old_lease(self, pieces: list[int], index: int, keep: bool) -> None:
        if not self.leases:
            return
        lease, namespace, before = self.leases.pop(index % len(self.leases))
        assert lease.num_tokens == len(before)
        key = before + self.key(pieces)
        new = [whole for whole in self.wholes(key) if len(whole) > len(before)]
        offered = [next(self.fresh) for _ in new]
        inserted = self.tree.insert(lease, key[len(before) : len(before) + len(new) * self.page_size], offered)
        kept = [self.pages.setdefault((namespace, whole), page) for whole, page in zip(new, offered, strict=True)]
        assert inserted.pages.tolist() == kept
        assert inserted.duplicates == [page for page in offered if page not in kept]
        self.keep_or_release(lease, namespace, key[: lease.num_tokens], keep)

    def keep_or_release(self, lease: Lease, namespace: str, key: Key, keep: bool) -> None:
        assert lease.pages().tolist() == self.held(namespace, key)
        self.cursors.append((lease.cursor, namespace, key))
        if keep:
            self.leases.append((lease, namespace, key))
        else:
            lease.release()
            lease.release()

    @rule(pieces=PIECES, namespace=SPACES, keep=st.booleans())
    def match(self, pieces: list[int], namespace: str, keep: bool) -> None:
        key = self.key(pieces)
        match = self.tree.match(np.array(key, np.int32), namespace)
        assert match.new_pages.tolist() == self.held(namespace, key)
        assert match.num_shared_tokens == self.longest_shared(namespace, key)
        if match.partial:
            path = next(whole for (_, whole), page in self.pages.items() if page == match.partial.page)
            assert path[: match.num_shared_tokens] == key[: match.num_shared_tokens]
        lease = self.tree.lease(match)
        assert lease.num_tokens == match.num_tokens
        self.keep_or_release(lease, namespace, key[: match.num_tokens], keep)

    @rule(pieces=PIECES, index=st.integers(0, 30))
    def match_on_from_a_cursor(self, pieces: list[int], index: int) -> None:
        if self.cursors:
            cursor, namespace, before = self.cursors[-1 - index % len(self.cursors)]
            key = before + self.key(pieces)
            resumed, cold = self.tree.match(key, namespace, cursor), self.tree.match(key, namespace)
            assert resumed.num_tokens == cold.num_tokens and resumed.partial == cold.partial
            pages = cold.new_pages[resumed.resumed_tokens // self.page_size :]
            assert resumed.new_pages.tolist() == pages.tolist()
            left = self.tree.pages(cursor).tolist()  # what came back since is found by matching, not by the cursor
            assert left == self.held(namespace, before)[: len(left)]
            assert tuple(self.tree.tokens(cursor).tolist()) == before[: len(left) * self.page_size]

    @rule(index=st.integers(0, 9))
    def release(self, index: int) -> None:
        if self.leases:
            self.leases.pop(index % len(self.leases))[0].release()

    @rule(num_pages=st.integers(0, 7))
    def evict(self, num_pages: int) -> None:
        wanted = min(num_pages, self.tree.num_evictable_pages)
        gone = [page for evicted in self.tree.evict(num_pages, self.order) for page in evicted.pages.tolist()]
        assert len(gone) == wanted == len(set(gone))
        leased = {page for lease, _, _ in self.leases for page in lease.pages().tolist()}
        assert not leased & set(gone)
        self.forget(gone)

    @rule(index=st.integers(0, 30), keep_tokens=st.integers(0, 20))
    def prune(self, index: int, keep_tokens: int) -> None:
        if self.cursors:
            cursor, _, _ = self.cursors[-1 - index % len(self.cursors)]
            pruned = self.tree.prune(cursor, keep_tokens)
            assert all(each.prefix.num_tokens >= keep_tokens for each in pruned)
            self.forget([page for each in pruned for page in each.pages.tolist()])

    @rule(index=st.integers(0, 30), keep_tokens=st.integers(0, 20))
    def supersede(self, index: int, keep_tokens: int) -> None:
        if self.cursors:
            self.tree.supersede(self.cursors[-1 - index % len(self.cursors)][0], keep_tokens)

    @rule(index=st.integers(0, 30), reader=st.sampled_from("abc"), stays=st.booleans())
    def attach(self, index: int, reader: str, stays: bool) -> None:
        if self.cursors and stays:
            self.tree.attach(reader, self.cursors[-1 - index % len(self.cursors)][0])
        elif not stays:
            self.tree.detach(reader)

    def forget(self, gone: list[int]) -> None:
        lost = set(gone)
        self.pages = {place: page for place, page in self.pages.items() if page not in lost}

    @invariant()
    def tree_is_sound_and_holds_what_the_dict_holds(self) -> None:
        check(self.tree, [lease for lease, _, _ in self.leases])
        assert self.tree.statistics().num_pages == len(self.pages)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_tree_agrees_with_a_dict(page_size: int) -> None:
    """100 runs of 50 operations for each page size."""
    machine = type("Machine", (TreeMachine,), {"page_size": page_size})
    quick = settings(
        max_examples=100,
        stateful_step_count=50,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=quick)
