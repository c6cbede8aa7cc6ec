"""Who owns which page: the tree, an open tail, a running sequence, or nobody. Integers only; knows no order and no
step.

A page is in exactly one place:
    free        the allocator's
    evictable   the tree's, on no leased path; or an idle tail
    leased      the tree's, on the path of a running sequence; a running sequence's own; or being read from disk
and free + evictable + leased = total after every operation (`check`).

A running sequence's page table:
    [0, num_tree_pages)        the tree's, leased: shared, never ours to free
    [num_tree_pages, ...)      our own: computed by us, or about to be
"""

from typing import NamedTuple

from ramet.radix.eviction import EvictionOrder, LeastRecentlyUsed
from ramet.radix.key import as_tokens
from ramet.radix.node import Cursor
from ramet.radix.tree import Match, RadixTree
from ramet.runtime.kv.allocator import PageAllocator
from ramet.runtime.kv.page_keys import PageKey
from ramet.runtime.kv.tier import DiskTier
from ramet.runtime.scheduler.open_pages import OpenPages
from ramet.runtime.scheduler.quota import Quotas
from ramet.runtime.scheduler.reload import Reload
from ramet.runtime.scheduler.sequence import Sequence
from ramet.runtime.scheduler.tails import PathKey, Tail
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.types import Moved, PageCopy


class Head(NamedTuple):
    """The first `num_tokens` tokens of a page that some other owner computed."""

    page: int
    num_tokens: int
    tail: Tail | None = None
    """An idle tail: its page may be taken over instead of copied."""


class Found(NamedTuple):
    """What the cache has of a sequence's tokens. Holds nothing."""

    match: Match | None
    num_whole: int
    """Tokens in whole pages of the tree."""
    head: Head | None
    """Of the page after those."""
    key: PathKey
    leader: Sequence | None = None
    """A running prefill that is about to compute more of the same: worth waiting for."""

    @property
    def num_tokens(self) -> int:
        return self.num_whole + (self.head.num_tokens if self.head else 0)


class PagesBalance(NamedTuple):
    total: int
    free: int
    evictable: int
    leased: int


class PrefixCache:
    """The tree, the open pages and the allocator under one owner. `tree` None: nothing outlives its sequence."""

    def __init__(
        self,
        allocator: PageAllocator,
        page_size: int,
        tree: RadixTree | None,
        order: EvictionOrder | None = None,
        tier: DiskTier | None = None,
    ) -> None:
        """`tier`: where pages go that leave the tree, and come from again; None: nowhere."""
        self.quotas: Quotas | None = None
        """Is told what lies in the tree, and whose it is."""
        self.tier = tier
        self._reloads: dict[PageKey, Reload] = {}
        self._reload_of_slot: dict[int, Reload] = {}
        self._num_loading = 0
        self.num_host_tokens = self.num_disk_tokens = 0
        """That came back from a lower tier."""
        self.allocator, self.tree, self.page_size = allocator, tree, page_size
        self.order: EvictionOrder = order or LeastRecentlyUsed()
        self.open_pages = OpenPages(page_size)
        self.num_owned = 0
        """Pages that running sequences own."""
        self._eviction_batch = min(32, allocator.num_pages // 256)
        """Pages that go at once: in a large pool an eviction per page would cost more than the page."""
        self.num_evicted_tokens = 0
        self.num_changes = 0
        """Counts leases taken and moved: while it stands, every sequence's shared pages are what they were."""

    # Looking ---------------------------------------------------------------------------------------------------------

    def look(self, seq: Sequence) -> Found:
        """The longest usable prefix: whole pages of the tree, then the head of one page, idle or in work."""
        if self.tree is None:
            return Found(None, 0, None, "")
        limit = seq.num_reusable
        cursor = seq.cursor
        if cursor is not None and cursor.num_tokens > limit:
            cursor = None
        match = self.tree.match(seq.tokens[:limit] if cursor is None else seq.tokens, seq.namespace, cursor)
        match = self._within(match, limit, seq)
        seq.cursor = match.cursor  # where the next look goes on from
        return self._with_head(seq, match, limit)

    def _within(self, match: Match, limit: int, seq: Sequence) -> Match:
        """A resumed match read all of the tokens; cut it where only `limit` of them are wanted."""
        assert self.tree is not None
        if match.num_shared_tokens <= limit:
            return match
        if match.num_tokens <= limit:
            assert match.partial is not None
            return match._replace(partial=match.partial._replace(num_tokens=limit - match.num_tokens))
        return self.tree.match(seq.tokens[:limit], seq.namespace)

    def _with_head(self, seq: Sequence, match: Match, limit: int) -> Found:
        key = self._key_of(match)
        whole = match.num_tokens
        wanted = as_tokens(seq.tokens[whole : min(limit, whole + self.page_size)])
        in_tree = match.partial.num_tokens if match.partial else 0
        head = Head(match.partial.page, in_tree) if match.partial and in_tree else None
        found, leader = self.open_pages.find(key, wanted, in_tree)
        if found is not None and found.num_tokens >= in_tree:
            head = Head(*found)  # an open tail may be taken over, without a copy
        return Found(match, whole, head, key, leader)

    def _key_of(self, match: Match) -> PathKey:
        """The open pages of a path are kept under its last whole page; those of the root under the namespace."""
        if match.num_tokens == 0:
            return match.cursor.namespace
        if len(match.new_pages):
            return int(match.new_pages[-1])
        cursor = match.cursor
        return int(cursor.node.pages[(cursor.num_tokens - cursor.node.start) // self.page_size - 1])

    # Holding ---------------------------------------------------------------------------------------------------------

    def acquire(self, seq: Sequence, found: Found) -> PageCopy | None:
        """Lease what was found. The sequence is at `found.num_tokens` then, or at its whole pages where there is no
        page for a copy of the head."""
        seq.num_computed = seq.num_shareable = found.num_whole
        seq.num_tree_pages = found.num_whole // self.page_size
        if found.match is None or self.tree is None:
            return None
        seq.lease = self.tree.lease(found.match)
        seq.pages = seq.lease.pages().tolist()
        self.num_changes += 1
        copy = self._take_head(seq, found.head) if found.head is not None else None
        self.open_pages.open(found.key, seq)
        return copy

    def _take_head(self, seq: Sequence, head: Head) -> PageCopy | None:
        if head.tail is not None and head.num_tokens == head.tail.num_tokens:
            self.open_pages.tails.take(head.tail)
            self._own(seq, [head.tail.page])
            seq.num_computed += head.num_tokens
            seq.num_shareable = seq.num_computed
            return None
        if not self.grow(seq, seq.num_computed + head.num_tokens, spare=head.tail):
            return None
        seq.num_computed += head.num_tokens
        return PageCopy(head.page, seq.pages[-1], head.num_tokens)

    def num_newly_leased(self, found: Found) -> int:
        """Pages of the found prefix that nobody leases yet: they can be evicted now, and can't be once it is
        acquired."""
        if found.match is None:
            return 0
        node, num_tokens = found.match.cursor.node, 0
        depth = found.num_whole
        while node.parent is not None and node.holds == 0:
            num_tokens += depth - node.start
            depth, node = node.start, node.parent
        return num_tokens // self.page_size

    def num_missing(self, found: Found, num_tokens: int) -> int:
        """Pages that a sequence would need beyond what was found, to hold `num_tokens`."""
        return max(0, -(-num_tokens // self.page_size) - found.num_whole // self.page_size)

    def grow(self, seq: Sequence, num_tokens: int, spare: Tail | None = None) -> bool:
        """Give the sequence pages for `num_tokens`, evicting what must go; False, and nothing changed, if it can't
        be."""
        missing = -(-num_tokens // self.page_size) - len(seq.pages)
        if missing <= 0:
            return True
        if self.allocator.num_free < missing and not self._make_room(missing, seq.program_id, spare):
            return False
        self._own(seq, self.allocator.alloc(missing, after=seq.pages[-1] if seq.pages else None))
        return True

    def _own(self, seq: Sequence, pages: list[int]) -> None:
        seq.pages.extend(pages)
        self.num_owned += len(pages)

    def _make_room(self, num_pages: int, on_behalf_of: str, spare: Tail | None) -> bool:
        """Tails go first: a tail is the end of its path and saves the fewest tokens for its page."""
        if self.num_available - (spare is not None) < num_pages:
            return False
        while self.allocator.num_free < num_pages and (tail := self.open_pages.tails.take_oldest(spare)) is not None:
            self._free([tail.page])
        missing = num_pages - self.allocator.num_free
        if missing > 0 and self.tree is not None:
            self._evict(max(missing, self._eviction_batch), on_behalf_of)
        return self.allocator.num_free >= num_pages

    def _evict(self, num_pages: int, on_behalf_of: str) -> int:
        assert self.tree is not None
        num_freed = 0
        for evicted in self.tree.evict(num_pages, self.order, on_behalf_of=on_behalf_of):
            self.num_evicted_tokens += len(evicted.tokens)
            self._note_cached(evicted.owner, -len(evicted.pages))
            num_freed += self._forget(evicted.pages.tolist())
        return num_freed

    def _forget(self, pages: list[int], *, saves: bool = True) -> int:
        """Pages that left the tree: they and the tails behind them are free. `saves`: a lower tier may have them."""
        if self.tier is not None:
            self.tier.leaves(pages if saves else ())
        tails = [tail.page for page in pages for tail in self.open_pages.tails.take_behind(page)]
        self._free(pages)
        self._free(tails)
        return len(pages) + len(tails)

    def _free(self, pages: list[int]) -> None:
        if pages:
            self.allocator.free(pages)

    def _note_cached(self, owner: str, num_pages: int) -> None:
        if self.quotas is not None:
            self.quotas.cached(owner, num_pages * self.page_size)

    # From the disk tier ----------------------------------------------------------------------------------------------

    def begin_reload(self, seq: Sequence, found: Found) -> bool:
        """Have what the disk tier has of the sequence's next pages read, where that beats computing them. True: the
        sequence has something to wait for."""
        if self.tier is None or self.tree is None or found.match is None or seq.reload is not None:
            return False
        first, last = found.num_whole // self.page_size, seq.num_reusable // self.page_size
        keys = self._named(seq, last)[first:last]
        if keys and (shared := self._reloads.get(keys[0])) is not None:
            seq.reload = shared
            return True
        num_pages = self.tier.num_worth_reading(keys)
        if num_pages == 0:
            return False
        seq.reload = self._read(seq, found.match, keys[:num_pages])
        return seq.reload is not None

    def _named(self, seq: Sequence, num_pages: int) -> list[PageKey]:
        """Names of its leading pages, `num_pages` at least. Kept with its tokens: each page is hashed once, whatever
        the number of turns."""
        assert self.tier is not None
        names = seq.tokens.names(self.page_size)
        self.tier.name_pages(names, seq.tokens, seq.namespace, max(num_pages, len(names)))
        return names

    def _read(self, seq: Sequence, match: Match, keys: list[PageKey]) -> Reload | None:
        assert self.tier is not None and self.tree is not None
        lease = self.tree.lease(match)
        if self.allocator.num_free < len(keys) and not self._make_room(len(keys), seq.program_id, None):
            lease.release()
            return None
        pages = self.allocator.alloc(len(keys))
        start = match.num_tokens
        slots = self.tier.read(pages, keys)
        tokens = as_tokens(seq.tokens[start : start + len(keys) * self.page_size])
        reload = self._reloads[keys[0]] = Reload(lease, tokens, pages, slots, seq.program_id, keys[0])
        self._reload_of_slot.update(dict.fromkeys(slots, reload))
        self._num_loading += len(pages)
        return reload

    def take_in(self, moved: Moved) -> None:
        """A page was written, or has come: with the last one that a reload waits for, all of them join the tree."""
        assert self.tier is not None
        self.tier.note(moved)
        reload = self._reload_of_slot.pop(moved.slot, None)
        if reload is not None and reload.note(moved):
            self._finish_reload(reload)

    def _finish_reload(self, reload: Reload) -> None:
        assert self.tree is not None
        num_usable, pages = reload.num_usable, reload.pages
        tokens = reload.tokens[: num_usable * self.page_size]
        if num_usable:
            inserted = self.tree.insert(reload.lease, tokens, pages[:num_usable], owner=reload.owner)
            self._note_cached(reload.owner, num_usable - len(inserted.duplicates))
            self._free(inserted.duplicates)
        self._free(pages[num_usable:])
        reload.lease.release()
        reload.is_over = True
        del self._reloads[reload.first_key]
        self._num_loading -= len(pages)
        num_from_host = reload.num_from_host * self.page_size
        self.num_host_tokens += num_from_host
        self.num_disk_tokens += len(tokens) - num_from_host

    @property
    def is_loading(self) -> bool:
        """Are pages held for what is being read?"""
        return self._num_loading > 0

    def tier_counts(self) -> dict[str, int]:
        """For the engine's snapshot."""
        if self.tier is None:
            return {}
        counts, size = self.tier.statistics(), self.page_size
        return {
            "host_hit_tokens_total": self.num_host_tokens,
            "disk_hit_tokens_total": self.num_disk_tokens,
            "disk_written_tokens_total": counts.written_pages_total * size,
            "disk_missed_tokens_total": counts.missed_pages_total * size,
            "disk_dropped_tokens_total": counts.dropped_pages_total * size,
        }

    # Giving back -----------------------------------------------------------------------------------------------------

    def publish(self, seq: Sequence) -> None:
        """Let others share the whole pages that the sequence has computed so far. It keeps them leased."""
        num_whole = min(seq.num_computed, seq.num_tokens) // self.page_size
        if self.tree is None or seq.lease is None or num_whole <= seq.num_tree_pages:
            return
        first = seq.num_tree_pages
        tokens = seq.tokens[first * self.page_size : num_whole * self.page_size]
        inserted = self.tree.insert(seq.lease, tokens, seq.pages[first:num_whole], owner=seq.program_id)
        # [first, num_whole)  new to the tree, which owns these from here on; where another sequence came first, its
        #                     pages hold the same and ours are freed
        seq.pages[first:num_whole] = inserted.pages.tolist()
        seq.num_tree_pages = num_whole
        self.num_changes += 1
        self.num_owned -= num_whole - first
        self._note_cached(seq.program_id, num_whole - first - len(inserted.duplicates))
        self._free(inserted.duplicates)
        self.open_pages.move(seq, int(inserted.pages[-1]))

    def give(self, seq: Sequence) -> Cursor | None:
        """Hand all that the sequence has computed to the cache. Afterwards it owns no page and holds no lease."""
        self.publish(seq)
        if seq.lease is None:
            self._discard(seq)
            return None
        key = self.open_pages.close(seq)
        num_whole = seq.num_tree_pages
        num_tail = min(seq.num_computed, seq.num_tokens) - num_whole * self.page_size
        own = seq.pages[num_whole:]
        if num_tail > 0 and key is not None:
            tokens = seq.tokens[num_whole * self.page_size : num_whole * self.page_size + num_tail]
            refused = self.open_pages.tails.keep(Tail(key, own[0], as_tokens(tokens)))
            self._free(refused)
            own = own[1:]
            self.num_owned -= 1
        self._free(own)
        self.num_owned -= len(own)
        cursor = seq.lease.cursor
        if self.tier is not None and num_whole:
            self.tier.rests(seq.pages[:num_whole], self._named(seq, num_whole)[:num_whole])
        seq.lease.release()
        self._reset(seq)
        return cursor

    def withdraw_head(self, seq: Sequence) -> list[int]:
        """The sequence steps back in the very step in which its page head would be copied: forget that head. The pages
        that are no longer a copy's target."""
        if seq.num_computed == seq.num_shareable:
            return []
        seq.num_computed = seq.num_shareable
        return seq.pages[seq.num_tree_pages :]

    def _discard(self, seq: Sequence) -> None:
        own = seq.pages[seq.num_tree_pages :]
        self._free(own)
        self.num_owned -= len(own)
        self._reset(seq)

    def _reset(self, seq: Sequence) -> None:
        seq.pages, seq.num_tree_pages, seq.lease = [], 0, None
        seq.num_computed = seq.num_shareable = 0

    def prune(self, cursor: Cursor, keep_tokens: int, tokens: TokenRow | None = None) -> None:
        """Free at once what only a closed branch used, from the end of its path up to `keep_tokens`. `tokens`: the
        branch's; they name the last of it, which is less than a page."""
        if self.tree is not None:
            if tokens is not None:
                self._prune_tail(cursor, keep_tokens, tokens)
            for evicted in self.tree.prune(cursor, keep_tokens):
                self._note_cached(evicted.owner, -len(evicted.pages))
                self._forget(evicted.pages.tolist(), saves=False)

    def _prune_tail(self, cursor: Cursor, keep_tokens: int, tokens: TokenRow) -> None:
        assert self.tree is not None
        match = self.tree.match(tokens, cursor.namespace, cursor)
        behind = as_tokens(tokens[match.num_tokens : match.num_tokens + self.page_size])
        found = self.open_pages.tails.find(self._key_of(match), behind)
        if found is not None and found.num_tokens == found.tail.num_tokens > keep_tokens - match.num_tokens:
            self.open_pages.tails.take(found.tail)
            self._free([found.tail.page])

    def flush(self) -> int:
        """Drop everything that no running sequence holds; the number of pages."""
        num_before = self.allocator.num_free
        while (tail := self.open_pages.tails.take_oldest(None)) is not None:
            self._free([tail.page])
        if self.tree is not None and self.tree.num_evictable_pages:
            self._evict(self.tree.num_evictable_pages, "flush")
        return self.allocator.num_free - num_before

    # Telling ---------------------------------------------------------------------------------------------------------

    def explain(self, seq: Sequence, found: Found) -> dict[str, object] | None:
        """Why the cache did not have all of the prompt; None where it had."""
        at_token = found.num_tokens
        if at_token >= seq.num_tokens - 1:
            return None
        miss: dict[str, object] = {"at_token": at_token, "num_tokens": seq.num_tokens - at_token}
        if self.tree is None or found.match is None:
            return {"cause": "cache_off", **miss}
        if seq.num_reusable <= at_token:
            return {"cause": "prompt_logprobs", **miss}
        rewritten_at = seq.request.rewritten_at
        if rewritten_at is not None and at_token >= rewritten_at:
            return {"cause": "template_rewrote", **miss}
        if 0 < seq.num_known - 1 <= at_token:  # all that the branch ever had is here: the rest is new
            return {"cause": "never_seen", **miss}
        return {**_explanation(self.tree, found.match, seq), **miss}

    # Counting --------------------------------------------------------------------------------------------------------

    @property
    def num_evictable(self) -> int:
        in_tree = self.tree.num_evictable_pages if self.tree is not None else 0
        return in_tree + len(self.open_pages.tails)

    @property
    def num_nodes(self) -> int:
        return self.tree.statistics().num_nodes if self.tree is not None else 0

    @property
    def num_available(self) -> int:
        """Pages that a sequence could be given, evicting all that may go."""
        return self.allocator.num_free + self.num_evictable

    @property
    def num_pages(self) -> int:
        return self.allocator.num_pages

    def balance(self) -> PagesBalance:
        in_tree = self.tree.statistics().num_leased_pages if self.tree is not None else 0
        leased = in_tree + self.num_owned + self._num_loading
        return PagesBalance(self.num_pages, self.allocator.num_free, self.num_evictable, leased)

    def check(self, running: list[Sequence]) -> None:
        """AssertionError unless free + evictable + leased = total and every page has one owner. For tests and
        idleness."""
        balance = self.balance()
        owned = [page for seq in running for page in seq.pages[seq.num_tree_pages :]]
        assert len(owned) == self.num_owned, f"{len(owned)} pages are owned, {self.num_owned} were counted"
        assert balance.free + balance.evictable + balance.leased == balance.total, f"pages were lost: {balance}"
        assert len(set(owned)) == len(owned), "two sequences own one page"


def _explanation(tree: RadixTree, match: Match, seq: Sequence) -> dict[str, object]:
    why = tree.explain(match, seq.tokens[:])
    if why.cause == "evicted" and why.record is not None:
        record = why.record
        by = {"on_behalf_of": record.on_behalf_of, "policy": record.policy, "time": record.time, "rank": record.rank}
        return {"cause": why.cause, "evicted": {"owner": record.owner, **by}}
    if why.cause == "diverged":
        return {"cause": why.cause, "expected_tokens": why.expected.tolist()}
    return {"cause": "never_seen"}
