"""How fast the radix tree matches, inserts and evicts, and what a cached page costs in Python memory. No model.

The tree that is timed is first built, used and proved with `check`; the pages that come back are compared with those
that went in. Medians of many repeats, for the machine is shared.
"""

import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from ramet.bench.form import Bar, Measured, NotCorrect
from ramet.radix.check import check
from ramet.radix.eviction import LeastRecentlyUsed
from ramet.radix.key import Tokens
from ramet.radix.tree import RadixTree

PAGE_SIZE = 16
BRANCH_TOKENS = 100_000
TURN_TOKENS = 50
HEAD_TOKENS, SEQUENCE_TOKENS, NUM_SEQUENCES = 1_000, 2_000, 500

BARS = (
    Bar("resumed_match_us", 50.0, "<="),
    Bar("cold_match_ms", 10.0, "<="),
    Bar("insert_evict_mtok_s", 2.0, ">="),
)


def measure(options: object = None) -> Measured:
    """Every figure; takes a few seconds."""
    return Measured(figures={**_match_figures(), **_churn_figures(), **_memory_figures()}, bars=BARS)


def _match_figures() -> dict[str, float]:
    """A branch of 100k tokens that grew in turns of 50, beside siblings that left it on the way."""
    branch = _tokens(BRANCH_TOKENS, seed=1)
    tree = _grown_branch(branch)
    cursor = tree.match(branch[:-TURN_TOKENS]).cursor
    whole = BRANCH_TOKENS // PAGE_SIZE * PAGE_SIZE
    resumed, cold = tree.match(branch, cursor=cursor), tree.match(branch)
    if resumed.num_tokens != whole or cold.new_pages.tolist() != list(range(whole // PAGE_SIZE)):
        raise NotCorrect(f"matched {resumed.num_tokens} resumed and {cold.num_tokens} cold of {whole} cached tokens")
    as_list = branch.tolist()
    return {
        "resumed_match_us": 1e6 * _median_s(lambda: tree.match(branch, cursor=cursor), 2_000),
        "resumed_match_list_us": 1e6 * _median_s(lambda: tree.match(as_list, cursor=cursor), 2_000),
        "cold_match_ms": 1e3 * _median_s(lambda: tree.match(as_list), 50),
        "cold_match_array_ms": 1e3 * _median_s(lambda: tree.match(branch), 200),
        "branch_nodes": tree.statistics().num_nodes,
    }


def _grown_branch(branch: Tokens) -> RadixTree:
    tree = RadixTree(PAGE_SIZE)
    lease = tree.lease(tree.match([]))
    step = 3 * PAGE_SIZE
    for start in range(0, len(branch) // PAGE_SIZE * PAGE_SIZE, step):
        piece = branch[start : start + step]
        piece = piece[: len(piece) // PAGE_SIZE * PAGE_SIZE]
        first = start // PAGE_SIZE
        tree.insert(lease, piece, np.arange(first, first + len(piece) // PAGE_SIZE, dtype=np.int32))
        if start % 9_600 == 0:
            _leave(tree, branch[: start + step], page=1_000_000 + start)
    lease.release()
    check(tree)
    return tree


def _leave(tree: RadixTree, path: Tokens, page: int) -> None:
    """A sibling with one page of its own goes off at the end of `path`."""
    with tree.lease(tree.match(path)) as lease:
        tree.insert(lease, np.full(PAGE_SIZE, page, np.int32), [page])


def _churn_figures() -> dict[str, float]:
    """1M tokens in sequences of 2k that share a head of 1k: each is matched, inserted and released; then all go."""
    sequences = _sequences()
    rates: list[float] = []
    for _ in range(5):
        tree = RadixTree(PAGE_SIZE)
        start = time.perf_counter()
        _insert_all(tree, sequences)
        middle = time.perf_counter()
        if not rates:
            check(tree)
        between = time.perf_counter() - middle
        _evict_all(tree)
        rates.append(len(sequences) * SEQUENCE_TOKENS / (time.perf_counter() - start - between) / 1e6)
    return {"insert_evict_mtok_s": statistics.median(rates)}


def _insert_all(tree: RadixTree, sequences: list[Tokens]) -> None:
    page = 0
    for tokens in sequences:
        with tree.lease(tree.match(tokens)) as lease:
            new = tokens[lease.num_tokens :]
            tree.insert(lease, new, np.arange(page, page + len(new) // PAGE_SIZE, dtype=np.int32))
            page += len(new) // PAGE_SIZE


def _evict_all(tree: RadixTree) -> None:
    """A sequence's own pages at a time, as a scheduler under pressure does."""
    num_pages, order, num_gone = tree.statistics().num_pages, LeastRecentlyUsed(), 0
    while evicted := tree.evict((SEQUENCE_TOKENS - HEAD_TOKENS) // PAGE_SIZE, order):
        num_gone += sum(len(each.pages) for each in evicted)
    if num_gone != num_pages or tree.statistics().num_pages:
        raise NotCorrect(f"evicted {num_gone} of {num_pages} pages")


def _memory_figures() -> dict[str, float]:
    sequences = _sequences()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tree = RadixTree(PAGE_SIZE)
        _insert_all(tree, sequences)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return {"heap_bytes_per_page": held / tree.statistics().num_pages}


def _sequences() -> list[Tokens]:
    head = _tokens(HEAD_TOKENS, seed=2)
    tail = SEQUENCE_TOKENS - HEAD_TOKENS
    return [np.concatenate([head, _tokens(tail, seed=3 + index)]) for index in range(NUM_SEQUENCES)]


def _tokens(length: int, *, seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 100_000, length, dtype=np.int32)


def _median_s(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
