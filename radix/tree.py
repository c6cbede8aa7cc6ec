"""Token prefixes -> page ids. Integers only; who owns the bytes, and what time it is, is not its business.

A page is `page_size` tokens of KV. The tree shares whole pages; a match that ends inside a page also names that page
and how much of it is right (`Match.partial`), so that the caller may copy its head and share to the token. Edges split
only at page boundaries. Time comes from the clock that it was given.

I1  a label is a whole, non-zero number of pages    I4  leased + evictable == pages held
I2  siblings differ in their first page             I5  a page id occurs once
I3  the parent of a held node is held               proved by radix.check.check(tree)
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramet.radix.eviction import Candidates, EvictionOrder
from ramet.radix.key import Tokens, TokensLike, add_hashes, as_tokens, common_prefix, common_prefixes, prefix_hash
from ramet.radix.lease import Lease, path_nodes, path_pages
from ramet.radix.miss import EvictionMemory, EvictionRecord, Miss
from ramet.radix.node import Cursor, Node, PageIds, PartialPage

_NO_TOKENS: Tokens = np.empty(0, np.int32)
_NO_PAGES: PageIds = np.empty(0, np.int32)
_SNIPPET = 16
_PRICE_KEEP = 0.1
_GROWN_LABEL_TOKENS = 4096
"""A label that grows page by page stops here and a child goes on: growing copies it, and this bounds the copy."""


class Match(NamedTuple):
    """The longest cached prefix of a key. Holds nothing: lease it before anything may be evicted."""

    cursor: Cursor
    """Where the whole pages end. Match the key's continuation from here in O(new tokens)."""
    resumed_tokens: int
    """Tokens taken over from the cursor that the match started from; the pages below are those after them."""
    new_pages: PageIds
    """int32 [(num_tokens - resumed_tokens) / page_size]  the tree's"""
    partial: PartialPage | None
    """The page in which the match ends, if it ends inside one. The tree's; it may go with the next eviction."""

    @property
    def num_tokens(self) -> int:
        """Matched in whole pages."""
        return self.cursor.num_tokens

    @property
    def num_shared_tokens(self) -> int:
        """Matched to the token: whole pages plus the head of the partial one."""
        return self.num_tokens + (self.partial.num_tokens if self.partial else 0)


class Inserted(NamedTuple):
    """What became of pages that were offered to the tree."""

    pages: PageIds
    """int32 [pages offered]  the tree's, in the same order: use these from now on"""
    duplicates: list[int]
    """Offered pages that the tree did not take, for it has the same tokens elsewhere: the caller's, to free."""
    cursor: Cursor
    """The end of the path; the lease now ends here."""


class Evicted(NamedTuple):
    """A run of pages that left the tree: the caller's, to free (or to write to a lower tier first)."""

    pages: PageIds
    """int32 [n]"""
    tokens: Tokens
    """int32 [n * page_size]  what they hold"""
    prefix: Cursor
    """The path above them."""
    owner: str
    rank: float
    """What the order thought them worth; the price of memory is the last of these."""
    was_superseded: bool
    """Newer state had taken their place."""

    @property
    def end(self) -> int:
        """Tokens of the path down to the last page that went."""
        return self.prefix.num_tokens + len(self.tokens)


class TreeStatistics(NamedTuple):
    """An immutable snapshot."""

    num_pages: int
    """Pages held; leased + evictable."""
    num_leased_pages: int
    num_evictable_pages: int
    num_tokens: int
    """Pages held, in tokens."""
    num_nodes: int
    """Without the roots."""
    num_namespaces: int
    num_candidates: int
    """Leaves that could go now."""
    inserted_pages_total: int
    duplicate_pages_total: int
    evicted_pages_total: int


class RadixTree:
    """See the module. Not thread-safe: one writer."""

    def __init__(
        self, page_size: int = 16, *, clock: Callable[[], float] | None = None, num_remembered_evictions: int = 65_536
    ) -> None:
        """`page_size` 1 to 64 tokens. `clock` gives seconds; by default each reading is one later than the last."""
        if not 1 <= page_size <= 64:
            raise ValueError(f"page_size: expected 1 to 64, got {page_size}")
        self.page_size = page_size
        self.evictions = EvictionMemory(num_remembered_evictions)
        self._now = clock or itertools.count().__next__
        self._roots: dict[str, Node] = {}
        self._candidates = Candidates()
        self._node_of_reader: dict[str, Node] = {}
        self.price = 0.0
        """Running mean of the last rank that went at each eviction: what a token was worth that had to go, where the
        order's ranks are prices."""
        self._num_nodes = self._num_pages = self._num_leased_pages = 0
        self._num_inserted = self._num_duplicates = self._num_evicted = 0

    # Reading ---------------------------------------------------------------------------------------------------------

    def match(self, tokens: TokensLike, namespace: str = "", cursor: Cursor | None = None) -> Match:
        """The longest cached prefix of `tokens`; changes nothing.

        With a `cursor` from an earlier match, insert or lease of the same key, only the tokens after it are read: the
        first `cursor.num_tokens` of `tokens` must be the ones that it was made with.
        """
        node, depth = self._resume(namespace, cursor)
        if node is None:
            return Match(Cursor(_new_root(namespace), 0), 0, _NO_PAGES, None)
        key = as_tokens(tokens[depth:])
        node, whole, extra, pages = self._walk(node, depth, key)
        partial = PartialPage(*extra) if extra else None
        return Match(Cursor(node, depth + whole), depth, pages, partial)

    def pages(self, cursor: Cursor) -> PageIds:
        """int32 [cursor.num_tokens / page_size]  all pages above a cursor, as far as they are still held; O(pages)."""
        node, depth = self._resume(cursor.namespace, cursor)
        return _NO_PAGES if node is None else path_pages(Cursor(node, depth), self.page_size)

    def tokens(self, cursor: Cursor) -> Tokens:
        """int32 [cursor.num_tokens]  the tokens above a cursor, as far as they are still held; O(tokens)."""
        node, depth = self._resume(cursor.namespace, cursor)
        labels = [] if node is None else [each.label for each in path_nodes(node)]
        return np.concatenate([_NO_TOKENS, *labels])[:depth]

    def is_valid(self, cursor: Cursor) -> bool:
        """Is the whole path above the cursor still held?"""
        return self._resume(cursor.namespace, cursor)[1] == cursor.num_tokens

    def nodes(self) -> Iterator[Node]:
        """Every node, roots included, parents before children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def roots(self) -> dict[str, Node]:
        """The root of each namespace that holds or is leased."""
        return dict(self._roots)

    def candidates(self) -> list[Node]:
        """The leaves that an eviction could take now."""
        return list(self._candidates)

    def statistics(self) -> TreeStatistics:
        return TreeStatistics(
            num_pages=self._num_pages,
            num_leased_pages=self._num_leased_pages,
            num_evictable_pages=self._num_pages - self._num_leased_pages,
            num_tokens=self._num_pages * self.page_size,
            num_nodes=self._num_nodes,
            num_namespaces=len(self._roots),
            num_candidates=len(self._candidates),
            inserted_pages_total=self._num_inserted,
            duplicate_pages_total=self._num_duplicates,
            evicted_pages_total=self._num_evicted,
        )

    @property
    def num_evictable_pages(self) -> int:
        """Pages on no leased path; `evict` can free this many."""
        return self._num_pages - self._num_leased_pages

    def explain(self, match: Match, tokens: TokensLike) -> Miss:
        """Why `match`, just made of `tokens`, ended where it did."""
        key, at = as_tokens(tokens), match.num_shared_tokens
        if at >= len(key):
            return Miss("whole", at, _NO_TOKENS)
        lost_page = key[match.num_tokens : match.num_tokens + self.page_size]
        if len(lost_page) == self.page_size:
            prefix = add_hashes(self._hash_at(match.cursor), prefix_hash(lost_page, match.num_tokens))
            record = self.evictions.find(match.cursor.namespace, prefix)
            if record is not None:
                return Miss("evicted", at, _NO_TOKENS, record)
        if match.partial is None and (at == 0 or not self._continues(match.cursor)):
            return Miss("never_seen", at, _NO_TOKENS)
        return Miss("diverged", at, self._nearest_continuation(match, key))

    # Leases ----------------------------------------------------------------------------------------------------------

    def lease(self, match: Match | Cursor) -> Lease:
        """Hold the path of a match (or down to a cursor). If part of it was evicted since, the lease is shorter."""
        cursor = match if isinstance(match, Cursor) else match.cursor
        node, depth = self._resume(cursor.namespace, cursor)
        if node is None:
            node = self._roots[cursor.namespace] = _new_root(cursor.namespace)
        node = self._split(node, depth) if depth < node.end else node
        node.last_used = self._now()
        self._hold(node)
        return Lease(self, node)

    def end_lease(self, lease: Lease) -> None:
        """For `Lease.release`, which calls it once."""
        lease.node.last_used = self._now()
        self._unhold(lease.node)

    # Writing ---------------------------------------------------------------------------------------------------------

    def insert(self, lease: Lease, tokens: TokensLike, pages: Sequence[int] | PageIds, *, owner: str = "") -> Inserted:
        """Append `tokens` (whole pages) and the `pages` that hold them at the end of the lease, which moves down to the
        new end. What the tree has already is not taken: those pages come back as `duplicates`."""
        key, given = as_tokens(tokens), np.asarray(pages, dtype=np.int32)
        self._check_insert(lease, key, given)
        node, depth = lease.node, lease.node.end
        bottom, whole, _, known = self._walk(node, depth, key)
        num_known = whole // self.page_size
        duplicates = given[:num_known][given[:num_known] != known].tolist()
        if depth + whole < bottom.end:
            bottom = self._split(bottom, depth + whole)
        if whole < len(key):
            bottom = self._append(bottom, lease, key[whole:], given[num_known:], owner)
        bottom.last_used = self._now()
        self._move(lease, bottom)
        self._num_inserted += len(given) - num_known
        self._num_duplicates += len(duplicates)
        return Inserted(np.concatenate([known, given[num_known:]]), duplicates, lease.cursor)

    def evict(self, num_pages: int, order: EvictionOrder, *, on_behalf_of: str = "") -> list[Evicted]:
        """Free at least `num_pages`, or all that no lease holds where that is less. The order picks leaves; of a leaf
        the tail goes before the head, and one leaf is finished before the next is opened."""
        now, evicted, missing = self._now(), [], num_pages
        while missing > 0 and (popped := self._candidates.pop(order, now)) is not None:
            node, rank = popped
            took = self._cut(node, min(missing, node.num_pages), rank)
            missing -= len(took.pages)
            evicted.append(took)
            self._remember(took, order, on_behalf_of, now)
            if node.is_alive:
                self._candidates.put_back(node, rank)
        if evicted:
            self.price += _PRICE_KEEP * (evicted[-1].rank - self.price)
        return evicted

    def prune(self, cursor: Cursor, keep_tokens: int = 0) -> list[Evicted]:
        """Free the end of one path at once, up to (not into) `keep_tokens`, as far as nobody else uses it: no lease, no
        branch, no other reader. For cancelled branches, rolled-back tails and text the template won't render again."""
        node, depth = self._resume(cursor.namespace, cursor)
        pruned: list[Evicted] = []
        while node is not None and node.parent is not None and depth == node.end and depth > keep_tokens:
            if node.children or node.holds or node.readers:
                break
            parent, kept = node.parent, max(node.start, self._whole_pages_end(keep_tokens))
            if kept >= node.end:
                break
            self._candidates.remove(node)
            pruned.append(self._cut(node, (node.end - kept) // self.page_size, 0.0))
            if node.is_alive:
                self._candidates.add(node, self._now())
                break
            node, depth = parent, parent.end
        return pruned

    def supersede(self, cursor: Cursor, keep_tokens: int) -> None:
        """Newer state has taken the place of what lies on this path beyond `keep_tokens`: it goes first, unless other
        branches or readers share it. A lease on it takes the word back."""
        node, depth = self._resume(cursor.namespace, cursor)
        while node is not None and node.parent is not None and depth > keep_tokens and len(node.children) <= 1:
            if node.readers or node.holds:
                return
            kept = self._whole_pages_end(keep_tokens)
            if kept == node.end:
                return
            if node.start < kept:
                self._split(node, kept)
            self.mark(node, superseded=True)
            node, depth = node.parent, node.start

    def mark(
        self,
        node: Node | Cursor,
        *,
        value: float | None = None,
        owner: str | None = None,
        superseded: bool | None = None,
    ) -> None:
        """Say what a node is worth: a factor on its retention value, the program that owns it, or that newer state has
        superseded it. Of a cursor, the node it lies in."""
        found = self._resume(node.namespace, node)[0] if isinstance(node, Cursor) else node
        if found is None or found.parent is None:
            return
        found.owner = found.owner if owner is None else owner
        found.value = found.value if value is None else value
        found.is_superseded = found.is_superseded if superseded is None else superseded
        self._rank_again(found)

    # Readers: who will come back -----------------------------------------------------------------------------------

    def attach(self, reader: str, cursor: Cursor) -> None:
        """A program in a gap will read the path of `cursor` when it returns. Not a lock: as its end is evicted, the
        reader moves up, so that each leaf knows for whom it is kept. A reader is at one place."""
        self.detach(reader)
        node, _ = self._resume(cursor.namespace, cursor)
        if node is not None and node.parent is not None:
            node.readers = (*node.readers, reader)
            self._node_of_reader[reader] = node
            self._rank_again(node)

    def detach(self, reader: str) -> None:
        """The program came back or ended."""
        node = self._node_of_reader.pop(reader, None)
        if node is not None:
            node.readers = tuple(each for each in node.readers if each != reader)
            self._rank_again(node)

    def revalue(self, reader: str) -> None:
        """What is known of a reader has changed: the node that is kept for it is ranked again."""
        node = self._node_of_reader.get(reader)
        if node is not None:
            self._rank_again(node)

    @property
    def num_ranked(self) -> int:
        """Ranks that eviction orders computed since the start."""
        return self._candidates.num_ranked

    def reader_depth(self, reader: str) -> int:
        """Tokens that the tree still holds for a reader; 0 where it is not attached, or all is gone."""
        node = self._node_of_reader.get(reader)
        return 0 if node is None else node.end

    # Inside: reading -------------------------------------------------------------------------------------------------

    def _resume(self, namespace: str, cursor: Cursor | None) -> tuple[Node | None, int]:
        """The live node and the depth that a cursor stands for now: up from what was evicted, or split off above."""
        root = self._roots.get(namespace)
        if cursor is None or cursor.namespace != namespace:
            return root, 0
        node, depth = cursor.node, cursor.num_tokens
        while node.parent is not None and (not node.is_alive or depth <= node.start):
            depth = min(depth, node.start)
            node = node.parent
        if node.parent is None:
            return root, 0
        return node, min(depth, node.end)

    def _walk(self, node: Node, depth: int, key: Tokens) -> tuple[Node, int, tuple[int, int] | None, PageIds]:
        """Follow `key` down from `depth` in `node`: the deepest node touched, tokens matched in whole pages, the page
        and length of a match inside a page, and the matched pages."""
        size, done, pages = self.page_size, 0, []
        while True:
            offset = depth + done - node.start  # in this node's label
            same = common_prefix(node.label[offset:], key[done:])
            whole = same - same % size
            first = offset // size
            pages.append(node.pages[first : first + whole // size])
            done += whole
            if offset + whole < len(node.label):
                extra = (int(node.pages[first + whole // size]), same % size) if same % size else None
                return node, done, extra, _joined(pages)
            child = node.children.get(key[done : done + size].tobytes())
            if child is None:
                return node, done, self._partial_child(node, key[done : done + size]), _joined(pages)
            node = child

    def _partial_child(self, node: Node, page: Tokens) -> tuple[int, int] | None:
        """Among the children of `node`, the first page that shares most leading tokens with `page`."""
        if self.page_size == 1 or not node.children or not len(page):
            return None
        shared = common_prefixes(self._first_pages(node), page)
        best = int(shared.argmax())
        if shared[best] == 0:
            return None
        child = next(itertools.islice(node.children.values(), best, None))
        return int(child.pages[0]), int(shared[best])

    def _first_pages(self, node: Node) -> NDArray[np.int32]:
        """int32 [children, page_size]"""
        return np.frombuffer(b"".join(node.children), np.int32).reshape(-1, self.page_size)

    def _hash_at(self, cursor: Cursor) -> int:
        below = cursor.node.label[cursor.num_tokens - cursor.node.start :]
        return add_hashes(cursor.node.hash_after, -prefix_hash(below, cursor.num_tokens))

    def _whole_pages_end(self, num_tokens: int) -> int:
        """`num_tokens`, rounded up to whole pages."""
        return -(-num_tokens // self.page_size) * self.page_size

    def _continues(self, cursor: Cursor) -> bool:
        """Does any cached path go on where the cursor stands?"""
        return cursor.num_tokens < cursor.node.end or bool(cursor.node.children)

    def _nearest_continuation(self, match: Match, key: Tokens) -> Tokens:
        """What the cached path that is closest to `key` has from the first differing token on."""
        node, depth, at = match.cursor.node, match.num_tokens, match.num_shared_tokens
        if depth < node.end:
            return node.label[at - node.start : at - node.start + _SNIPPET].copy()
        best = int(common_prefixes(self._first_pages(node), key[depth : depth + self.page_size]).argmax())
        child = next(itertools.islice(node.children.values(), best, None))
        return child.label[at - child.start : at - child.start + _SNIPPET].copy()

    # Inside: writing -------------------------------------------------------------------------------------------------

    def _check_insert(self, lease: Lease, key: Tokens, pages: PageIds) -> None:
        if lease.is_released:
            raise ValueError("insert: the lease was released; lease the path again")
        if len(key) != len(pages) * self.page_size:
            raise ValueError(f"insert: expected {len(pages)} pages of {self.page_size} tokens, got {len(key)} tokens")

    def _append(self, node: Node, lease: Lease, label: Tokens, pages: PageIds, owner: str) -> Node:
        """New tokens at the end of `node`: in place where only this lease can tell, else as a child."""
        is_ours = node is lease.node and node.holds == 1 and not node.children and not node.is_root
        if is_ours and not node.was_trimmed and node.owner == owner and len(node.label) < _GROWN_LABEL_TOKENS:
            node.hash_after = add_hashes(node.hash_after, prefix_hash(label, node.end))
            node.label = np.concatenate([node.label, label])
            node.pages = np.concatenate([node.pages, pages])
            self._num_pages += len(pages)
            self._num_leased_pages += len(pages)
            return node
        after = add_hashes(node.hash_after, prefix_hash(label, node.end))
        child = Node(node, label.copy(), pages.copy(), node.end, after, node.namespace, owner=owner)
        self._candidates.remove(node)
        node.children[label[: self.page_size].tobytes()] = child
        self._num_nodes += 1
        self._num_pages += len(pages)
        return child  # nobody holds it yet, but the insert that calls this will

    def _split(self, lower: Node, depth: int) -> Node:
        """Cut the edge above `lower` at `depth`: the new upper part, below which `lower` (the same object) hangs."""
        parent, cut = lower.parent, depth - lower.start
        assert parent is not None and 0 < cut < len(lower.label)
        size, first = self.page_size, lower.label[: self.page_size].tobytes()
        upper_label, upper_pages = lower.label[:cut].copy(), lower.pages[: cut // size].copy()
        after = add_hashes(parent.hash_after, prefix_hash(upper_label, lower.start))
        upper = Node(
            parent, upper_label, upper_pages, lower.start, after, lower.namespace, lower.last_used, lower.owner
        )
        upper.holds, upper.value, upper.is_superseded = int(lower.holds > 0), lower.value, lower.is_superseded
        lower.label, lower.pages = lower.label[cut:].copy(), lower.pages[cut // size :].copy()
        lower.start, lower.parent = depth, upper
        upper.children[lower.label[:size].tobytes()] = lower
        parent.children[first] = upper
        self._num_nodes += 1
        return upper

    def _move(self, lease: Lease, node: Node) -> None:
        """Let the lease end at `node`, at or below where it ended."""
        if node is not lease.node:
            self._hold(node)
            self._unhold(lease.node)
            lease.node = node

    def _hold(self, node: Node) -> None:
        """One more lease ends at `node`; up to the first ancestor that was held before."""
        self._candidates.remove(node)
        above: Node | None = node
        while above is not None:
            above.holds += 1
            above.is_superseded = False  # somebody reads it after all
            if above.holds > 1:
                return
            self._num_leased_pages += above.num_pages
            above = above.parent

    def _unhold(self, node: Node) -> None:
        above: Node | None = node
        while above is not None:
            above.holds -= 1
            if above.holds > 0:
                return
            self._num_leased_pages -= above.num_pages
            self._offer(above)
            above = above.parent

    def _offer(self, node: Node) -> None:
        """`node` may have become a leaf that nobody holds, or a root that nobody needs."""
        if node.children or node.holds:
            return
        if node.parent is not None:
            self._candidates.add(node, self._now())
        elif self._roots.pop(node.namespace, None) is not None:
            node.is_alive = False

    def _rank_again(self, node: Node) -> None:
        if node in self._candidates:
            self._candidates.add(node, self._now())

    def _cut(self, node: Node, num_pages: int, rank: float) -> Evicted:
        """Take the last `num_pages` of a leaf, which is no candidate now; with its last page the leaf dies."""
        parent, kept = node.parent, node.num_pages - num_pages
        assert parent is not None and not node.children and node.holds == 0
        self._num_pages -= num_pages
        self._num_evicted += num_pages
        pages, label = node.pages, node.label
        if kept == 0:
            self._remove(node, parent)
            return Evicted(pages, label, Cursor(parent, node.start), node.owner, rank, node.is_superseded)
        node.pages, node.label, node.was_trimmed = pages[:kept], label[: kept * self.page_size], True
        gone = label[len(node.label) :]
        node.hash_after = add_hashes(node.hash_after, -prefix_hash(gone, node.end))
        return Evicted(pages[kept:], gone, Cursor(node, node.end), node.owner, rank, node.is_superseded)

    def _remove(self, node: Node, parent: Node) -> None:
        """A leaf leaves the tree; what it knew of its use goes to its parent."""
        del parent.children[node.label[: self.page_size].tobytes()]
        node.is_alive = False
        self._num_nodes -= 1
        parent.last_used = max(parent.last_used, node.last_used)
        self._move_readers(node, parent)
        self._offer(parent)

    def _move_readers(self, node: Node, parent: Node) -> None:
        """Readers of an evicted leaf wait for what is left above it; at the root nothing is left."""
        readers, node.readers = node.readers, ()
        if parent.parent is not None:
            parent.readers += readers
            self._node_of_reader.update(dict.fromkeys(readers, parent))
            return
        for reader in readers:
            del self._node_of_reader[reader]

    def _remember(self, took: Evicted, order: EvictionOrder, on_behalf_of: str, now: float) -> None:
        before = self._hash_at(took.prefix)
        prefix = add_hashes(before, prefix_hash(took.tokens[: self.page_size], took.prefix.num_tokens))
        record = EvictionRecord(
            took.owner, on_behalf_of, now, order.name, took.rank, len(took.pages), took.was_superseded
        )
        self.evictions.remember(took.prefix.namespace, prefix, record)


def _new_root(namespace: str) -> Node:
    return Node(None, _NO_TOKENS, _NO_PAGES, 0, 0, namespace)


def _joined(pieces: list[PageIds]) -> PageIds:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
