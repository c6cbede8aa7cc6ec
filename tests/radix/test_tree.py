"""What the tree promises, one behaviour a test."""

import numpy as np
import pytest

from ramet.radix.check import check
from ramet.radix.eviction import LeastRecentlyUsed
from ramet.radix.lease import Lease
from ramet.radix.node import PartialPage
from ramet.radix.tree import RadixTree

LRU = LeastRecentlyUsed()


def put(tree: RadixTree, tokens: list[int], first_page: int, namespace: str = "", owner: str = "") -> Lease:
    """Insert whole pages of `tokens` that the tree lacks, with page ids counting from `first_page`; the lease."""
    lease = tree.lease(tree.match(tokens, namespace))
    new = tokens[lease.num_tokens : len(tokens) // tree.page_size * tree.page_size]
    pages = range(first_page, first_page + len(new) // tree.page_size)
    tree.insert(lease, new, list(pages), owner=owner)
    check(tree)
    return lease


def evict(tree: RadixTree, num_pages: int) -> list[int]:
    pages = [page for evicted in tree.evict(num_pages, LRU) for page in evicted.pages.tolist()]
    check(tree)
    return pages


def test_matches_whole_pages_and_names_the_page_it_ends_in() -> None:
    tree = RadixTree(4)
    put(tree, [1, 2, 3, 4, 5, 6, 7, 8], 10).release()
    match = tree.match([1, 2, 3, 4, 5, 6, 9, 9, 9])
    assert match.new_pages.tolist() == [10] and match.num_tokens == 4
    assert match.partial == PartialPage(page=11, num_tokens=2)
    assert match.num_shared_tokens == 6


def test_a_key_shorter_than_a_page_matches_the_head_of_one() -> None:
    tree = RadixTree(16)
    put(tree, list(range(16)), 7).release()
    assert tree.match([0, 1, 2]).partial == PartialPage(7, 3)
    assert tree.match([]).num_shared_tokens == 0


def test_of_several_children_the_longest_partial_match_wins() -> None:
    tree = RadixTree(4)
    put(tree, [1, 1, 1, 1, 5, 0, 0, 0], 0).release()
    put(tree, [1, 1, 1, 1, 5, 6, 7, 0], 10).release()
    put(tree, [1, 1, 1, 1, 5, 6, 0, 0], 20).release()
    assert tree.match([1, 1, 1, 1, 5, 6, 7, 9]).partial == PartialPage(10, 3)


def test_namespaces_share_nothing() -> None:
    tree = RadixTree(2)
    put(tree, [1, 2, 3, 4], 0, "red").release()
    assert tree.match([1, 2, 3, 4], "blue").num_tokens == 0
    put(tree, [1, 2, 3, 4], 10, "blue").release()
    assert tree.match([1, 2, 3, 4], "red").new_pages.tolist() == [0, 1]
    assert evict(tree, 4) and tree.statistics().num_namespaces == 0


def test_forks_of_one_prefix_count_its_pages_once() -> None:
    """Counting shared pages once per fork made an idle check kill a healthy server elsewhere (sglang #35270)."""
    tree = RadixTree(4)
    prefix = list(range(40))
    forks = [put(tree, [*prefix, 100 + n, 0, 0, 0], 100 * n) for n in range(1, 6)]
    statistics = tree.statistics()
    assert statistics.num_pages == statistics.num_leased_pages == 10 + 5
    for num_released, fork in enumerate(forks, start=1):
        fork.release()
        check(tree, forks)
        expected = 15 if num_released == 5 else num_released
        assert tree.statistics().num_evictable_pages == expected
    assert len(evict(tree, 100)) == 15 and tree.statistics().num_pages == 0


def test_the_leased_node_itself_and_all_its_ancestors_survive_eviction() -> None:
    """A lock that began at the parent left the matched node unprotected (mini-sglang #52)."""
    tree = RadixTree(2)
    put(tree, [1, 1, 2, 2, 3, 3], 0).release()
    put(tree, [1, 1, 9, 9], 10).release()
    with tree.lease(tree.match([1, 1, 2, 2])) as lease:
        assert sorted(evict(tree, 100)) == [2, 10]
        assert lease.pages().tolist() == [0, 1]
        assert tree.match([1, 1, 2, 2]).num_tokens == 4
    assert sorted(evict(tree, 100)) == [0, 1]


def test_releasing_twice_is_releasing_once() -> None:
    tree = RadixTree(1)
    first = put(tree, [1, 2], 0)
    second = tree.lease(tree.match([1, 2]))
    first.release()
    first.release()
    assert evict(tree, 2) == []
    second.release()
    assert evict(tree, 2) == [0, 1]


def test_a_leaf_loses_its_tail_before_its_head() -> None:
    tree = RadixTree(2)
    put(tree, [1, 1, 2, 2, 3, 3], 0).release()
    assert evict(tree, 1) == [2]
    assert evict(tree, 1) == [1]
    assert tree.match([1, 1, 2, 2, 3, 3]).new_pages.tolist() == [0]


def test_one_victim_is_finished_before_the_next_is_opened() -> None:
    tree = RadixTree(1)
    put(tree, [1, 2, 3], 0).release()
    put(tree, [7, 8, 9], 10).release()
    assert [evict(tree, 1) for _ in range(4)] == [[2], [1], [0], [12]]


def test_evicts_the_least_recent_unleased_leaf_and_a_parent_only_after_its_children() -> None:
    tree = RadixTree(1)
    put(tree, [1, 2], 0).release()
    put(tree, [1, 3], 10).release()
    put(tree, [5], 20).release()
    tree.lease(tree.match([1, 2])).release()  # used again: now the most recent
    assert [evict(tree, 1) for _ in range(4)] == [[10], [20], [1], [0]]


def test_superseded_tails_go_first_and_a_shared_head_is_spared() -> None:
    tree = RadixTree(1)
    put(tree, [5], 20).release()
    old = put(tree, [1, 2, 3, 4], 0)
    old.release()
    put(tree, [1, 2, 9], 10).release()
    tree.supersede(old.cursor, keep_tokens=2)
    assert [evict(tree, 1) for _ in range(3)] == [[3], [2], [20]]


def test_leasing_a_superseded_path_takes_the_word_back() -> None:
    tree = RadixTree(1)
    put(tree, [5], 20).release()
    old = put(tree, [1, 2], 0)
    old.release()
    tree.supersede(old.cursor, keep_tokens=0)
    tree.lease(tree.match([1, 2])).release()
    assert evict(tree, 1) == [20]


def test_insert_returns_what_another_branch_computed_first() -> None:
    tree = RadixTree(2)
    slow, fast = tree.lease(tree.match([])), tree.lease(tree.match([]))
    tree.insert(fast, [1, 1, 2, 2], [10, 11])
    inserted = tree.insert(slow, [1, 1, 2, 2, 3, 3], [20, 21, 22])
    assert inserted.duplicates == [20, 21] and inserted.pages.tolist() == [10, 11, 22]
    assert slow.pages().tolist() == [10, 11, 22]
    check(tree, [slow, fast])


def test_a_lease_grows_with_its_sequence_without_making_nodes() -> None:
    tree = RadixTree(4)
    lease = put(tree, [0, 1, 2, 3], 0)
    for page in range(1, 50):
        tree.insert(lease, [page] * 4, [page])
    assert tree.statistics().num_nodes == 1 and lease.pages().tolist() == list(range(50))
    check(tree, [lease])


def test_a_cursor_survives_splits_evictions_and_reinsertion() -> None:
    tree = RadixTree(1)
    first = put(tree, [1, 2, 3, 4, 5], 0)
    cursor = first.cursor
    first.release()
    put(tree, [1, 2, 9], 10).release()  # splits the path above the cursor
    assert tree.match([1, 2, 3, 4, 5, 6], cursor=cursor).num_tokens == 5
    assert evict(tree, 2) == [3, 4]  # trims it
    assert tree.match([1, 2, 3, 4, 5, 6], cursor=cursor).num_tokens == 3
    put(tree, [1, 2, 3, 8, 8, 8], 20).release()  # another tail grows where it was
    assert tree.match([1, 2, 3, 4, 5, 6], cursor=cursor).num_tokens == 3
    put(tree, [1, 2, 3, 4, 5, 6], 30).release()  # and the same again, on new pages
    match = tree.match([1, 2, 3, 4, 5, 6], cursor=cursor)
    assert match.num_tokens == 6 and not tree.is_valid(cursor)
    assert tree.pages(match.cursor).tolist() == [0, 1, 2, 30, 31, 32]


def test_a_stale_match_leases_only_what_is_left() -> None:
    tree = RadixTree(1)
    put(tree, [1, 2, 3], 0).release()
    match = tree.match([1, 2, 3])
    evict(tree, 1)
    assert tree.lease(match).num_tokens == 2


def test_pruning_a_cancelled_branch_frees_exactly_what_only_it_used() -> None:
    tree = RadixTree(2)
    keep = put(tree, [1, 1, 2, 2], 0)
    branch = put(tree, [1, 1, 2, 2, 3, 3, 4, 4], 10)
    branch.release()
    pages = [page for piece in tree.prune(branch.cursor) for page in piece.pages.tolist()]
    assert sorted(pages) == [10, 11]
    check(tree, [keep])


def test_rollback_keeps_up_to_the_mark() -> None:
    tree = RadixTree(2)
    branch = put(tree, [1, 1, 2, 2, 3, 3], 0)
    branch.release()
    pages = [page for piece in tree.prune(branch.cursor, keep_tokens=3) for page in piece.pages.tolist()]
    assert pages == [2]
    assert tree.match([1, 1, 2, 2, 3, 3]).num_tokens == 4


def test_readers_move_up_as_their_path_is_evicted() -> None:
    tree = RadixTree(1)
    path = put(tree, [1, 2, 3], 0)
    path.release()
    put(tree, [1, 7], 10).release()
    tree.attach("agent", path.cursor)
    assert tree.reader_depth("agent") == 3
    evict(tree, 2)
    assert tree.reader_depth("agent") == 1
    evict(tree, 9)
    assert tree.reader_depth("agent") == 0


def test_explains_what_was_never_seen_diverged_or_was_evicted() -> None:
    tree = RadixTree(2)
    key = [1, 1, 2, 2, 3, 3]

    def cause(tokens: list[int]) -> str:
        return tree.explain(tree.match(tokens), tokens).cause

    assert cause(key) == "never_seen"
    put(tree, key, 0, owner="agent").release()
    assert cause(key) == "whole" and cause([*key, 4, 4]) == "never_seen" and cause([7, 7]) == "never_seen"
    other = [1, 1, 2, 5, 3, 3]
    miss = tree.explain(tree.match(other), other)
    assert (miss.cause, miss.at_token, miss.expected.tolist()) == ("diverged", 3, [2, 3, 3])
    tree.evict(2, LRU, on_behalf_of="newcomer")
    miss = tree.explain(tree.match(key), key)
    assert (miss.cause, miss.at_token) == ("evicted", 2) and miss.record is not None
    assert (miss.record.owner, miss.record.on_behalf_of, miss.record.policy) == ("agent", "newcomer", "lru")


def test_an_eviction_is_remembered_though_the_path_above_came_and_went() -> None:
    tree = RadixTree(1)
    key = [1, 2, 3, 4]
    put(tree, key, 0).release()
    evict(tree, 2)
    evict(tree, 2)
    put(tree, key[:2], 10).release()
    assert tree.explain(tree.match(key), key).cause == "evicted"


def test_eviction_memory_is_bounded() -> None:
    tree = RadixTree(1, num_remembered_evictions=3)
    for token in range(9):
        put(tree, [token], token).release()
    evict(tree, 9)
    assert len(tree.evictions) == 3


def test_bad_calls_are_refused() -> None:
    tree = RadixTree(4)
    lease = put(tree, [0] * 4, 0)
    with pytest.raises(ValueError, match="expected 2 pages"):
        tree.insert(lease, [0] * 7, [1, 2])
    lease.release()
    with pytest.raises(ValueError, match="released"):
        tree.insert(lease, [0] * 4, [1])
    with pytest.raises(ValueError, match="page_size"):
        RadixTree(0)


def test_tokens_come_back_from_a_cursor() -> None:
    tree = RadixTree(4)
    lease = put(tree, list(range(24)), 0)
    put(tree, [*range(8), 1, 1, 1, 1], 50).release()
    assert np.array_equal(tree.tokens(lease.cursor), np.arange(24))
