"""The attention of one step: planned once on the host, then asked by every layer.

Which pages a row reads, where they lie in a row, which keys a tile of queries sees: the same in all layers, so it is
worked out once. `plan_attention` returns a function of what differs between layers. Same mathematics and layout as
kernels/attention.py.

Backends
    reference  asks `extend_attention` or `decode_attention` at each layer; so does triton, which plans on the device
    torch      for CPUs. Keys are read in place where a row's pages lie one after the other. A single token's query
               heads of one key head are the rows of one small product (torch's fused attention is slow for one query,
               and its causal form does half of the work for nothing: tiles of 128 queries against the keys that they
               see take half its time at 2,048 tokens, docs/LOG.md). Scores are rounded to q's dtype, softmax is not.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ramet.kernels.attention import Groups, decode_attention, extend_attention, visible_keys
from ramet.kernels.kv_quantize import read_int8
from ramet.kernels.registry import Op
from ramet.kernels.rotate_heads import rotate_heads

TILE = 128
"""Queries of a row per product."""


class StepAttention(Protocol):
    """One step's attention, for any layer."""

    def __call__(
        self,
        q: Tensor,
        key_pages: Tensor,
        value_pages: Tensor,
        *,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
        key_scales: Tensor | None = None,
        value_scales: Tensor | None = None,
    ) -> Tensor:
        """q  float [T, H, D];  key_pages, value_pages  float [N, S, G, D];  returns float [T, H, D], q's dtype.

        Where pages are int8 (kv_quantize.py), key_scales and value_scales  float16 [N, S, G].
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ByOps:
    """Asks the ops at each layer."""

    query_offsets: Tensor
    context_lengths: Tensor
    page_tables: Tensor
    groups: Groups
    tree_masks: Mapping[int, Tensor] | None
    positions: Tensor | None

    def __call__(
        self,
        q: Tensor,
        key_pages: Tensor,
        value_pages: Tensor,
        *,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
        key_scales: Tensor | None = None,
        value_scales: Tensor | None = None,
    ) -> Tensor:
        lengths, tables = self.context_lengths, self.page_tables
        if q.shape[0] == lengths.shape[0] and not self.tree_masks:  # one new token in each row
            return decode_attention(
                q, key_pages, value_pages, lengths, tables,
                scale=scale, window=window, soft_cap=soft_cap, groups=self.groups,
                key_scales=key_scales, value_scales=value_scales,
            )  # fmt: skip
        return extend_attention(
            q, key_pages, value_pages, self.query_offsets, lengths, tables,
            scale=scale, window=window, soft_cap=soft_cap, groups=self.groups,
            tree_masks=self.tree_masks, positions=self.positions, key_scales=key_scales, value_scales=value_scales,
        )  # fmt: skip


def plan_reference(
    query_offsets: Tensor,
    context_lengths: Tensor,
    page_tables: Tensor,
    *,
    page_size: int,
    groups: Groups = (),
    tree_masks: Mapping[int, Tensor] | None = None,
    positions: Tensor | None = None,
) -> StepAttention:
    """Nothing is planned: each layer asks the ops."""
    return ByOps(
        query_offsets=query_offsets, context_lengths=context_lengths, page_tables=page_tables, groups=groups,
        tree_masks=tree_masks, positions=positions,
    )  # fmt: skip


class Pool(NamedTuple):
    """Pages of keys or of values."""

    pages: Tensor
    scales: Tensor | None


@dataclass(slots=True)
class _Row:
    """One row: its new tokens [begin, end) of the step, and where its keys lie."""

    begin: int
    end: int
    length: int
    pages: Tensor
    """int64 [ceil(length / S)]"""
    first_page: int | None
    """Where the pages lie one after the other: the first."""
    tree: Tensor | None
    positions: Tensor | None
    """int64, of the new tokens; only where there is a tree"""
    masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)

    @property
    def start(self) -> int:
        return self.length - (self.end - self.begin)

    def read(self, pool: Pool, low: int, high: int) -> Tensor:
        """[high - low, G, D]: keys or values low <= j < high; a view where the pages lie one after the other and are no
        int8 codes."""
        found = self._slice(pool.pages, low, high)
        return found if pool.scales is None else read_int8(found, self._slice(pool.scales, low, high))

    def _slice(self, pool: Tensor, low: int, high: int) -> Tensor:
        """[N, S, ...] -> [high - low, ...]"""
        S, behind = pool.shape[1], pool.shape[2:]
        if self.first_page is not None:
            at = self.first_page * S
            return pool.view(-1, *behind)[at + low : at + high]
        first = low // S
        found = pool.index_select(0, self.pages[first : -(-high // S)]).view(-1, *behind)
        return found[low - first * S : high - first * S]

    def hidden_keys(self, first: int, low: int, last: int, high: int, window: int | None) -> Tensor:
        """bool [last - first, high - low]: which keys the new tokens [first, last) do not see."""
        known = self.masks.get((first, window))
        if known is None:
            seen = visible_keys(self.start, first, last, self.length, window, self.tree, self.positions)
            known = self.masks[first, window] = ~seen[:, low:high]
        return known


class PlannedAttention:
    """The torch plan."""

    def __init__(self, rows: list[_Row]) -> None:
        self.rows = rows

    def __call__(
        self,
        q: Tensor,
        key_pages: Tensor,
        value_pages: Tensor,
        *,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
        key_scales: Tensor | None = None,
        value_scales: Tensor | None = None,
    ) -> Tensor:
        q = q if key_scales is None else rotate_heads(q)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        keys, values = Pool(key_pages, key_scales), Pool(value_pages, value_scales)
        for row in self.rows:
            if row.end - row.begin == 1 and soft_cap is None:
                out[row.begin] = _attend_single(q[row.begin], row, keys, values, scale, window)
            elif row.end > row.begin:
                _attend_tiles(q, row, keys, values, out, scale, window, soft_cap)
        return out if key_scales is None else rotate_heads(out)


def plan_torch(
    query_offsets: Tensor,
    context_lengths: Tensor,
    page_tables: Tensor,
    *,
    page_size: int,
    groups: Groups = (),
    tree_masks: Mapping[int, Tensor] | None = None,
    positions: Tensor | None = None,
) -> StepAttention:
    """One pass over the rows, in ints."""
    offsets, lengths = query_offsets.tolist(), context_lengths.tolist()
    rows = []
    for r, (begin, end, length) in enumerate(zip(offsets[:-1], offsets[1:], lengths, strict=True)):
        pages = page_tables[r, : -(-length // page_size)].long()
        tree = None if tree_masks is None else tree_masks.get(r)
        in_tree = positions[begin:end] if tree is not None and positions is not None else None
        rows.append(_Row(begin, end, length, pages, _first_of_run(pages), tree, in_tree))
    return PlannedAttention(rows)


def _first_of_run(pages: Tensor) -> int | None:
    """The first page, where each page is followed by its neighbour."""
    first, last = int(pages[0]), int(pages[-1])
    if last - first != len(pages) - 1 or not bool((pages[1:] - pages[:-1] == 1).all()):
        return None
    return first


def _attend_single(
    q: Tensor, row: _Row, key_pages: Pool, value_pages: Pool, scale: float, window: int | None
) -> Tensor:
    """q, result: [H, D]. No mask: what a window hides is not read."""
    low = 0 if window is None else max(0, row.length - window)
    keys, values = (row.read(pool, low, row.length).to(q.dtype) for pool in (key_pages, value_pages))
    G, D = keys.shape[1:]
    grouped = q.view(1, G, -1, D)  # query heads of one key head, as if they were queries
    out = torch.nn.functional.scaled_dot_product_attention(
        grouped, keys.transpose(0, 1)[None], values.transpose(0, 1)[None], scale=scale
    )
    return out.view(q.shape)


def _attend_tiles(
    q: Tensor,
    row: _Row,
    key_pages: Pool,
    value_pages: Pool,
    out: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> None:
    """All new tokens of a row, TILE at a time against the keys that they see."""
    lowest = 0 if window is None or row.tree is not None else max(0, row.start - window + 1)
    keys, values = (
        row.read(pool, lowest, row.length).to(q.dtype).transpose(0, 1).contiguous() for pool in (key_pages, value_pages)
    )  # [G, length - lowest, D]
    G, _, D = keys.shape
    num_new = row.end - row.begin
    for first in range(0, num_new, TILE):
        last = min(first + TILE, num_new)
        low = lowest if window is None or row.tree is not None else max(lowest, row.start + first - window + 1)
        high = row.length if row.tree is not None else row.start + last
        tile = q[row.begin + first : row.begin + last].view(last - first, G, -1, D)  # [n, G, R, D]
        seen = slice(low - lowest, high - lowest)
        scores = _scores(tile, keys[:, seen], scale, soft_cap)  # [G, n, R, keys]
        _hide(scores, row, first, last, low, high, window)
        weights = scores.softmax(-1).flatten(1, 2)
        done = torch.bmm(weights, values[:, seen]).view(G, last - first, -1, D)
        out[row.begin + first : row.begin + last].view(last - first, G, -1, D).copy_(done.transpose(0, 1))


def _scores(tile: Tensor, keys: Tensor, scale: float, soft_cap: float | None) -> Tensor:
    n, G, R, D = tile.shape
    flat = tile.transpose(0, 1).reshape(G, n * R, D)
    scores = torch.baddbmm(flat.new_empty(()), flat, keys.transpose(1, 2), beta=0, alpha=scale)
    if soft_cap is not None:
        scores.div_(soft_cap).tanh_().mul_(soft_cap)
    return scores.view(G, n, R, -1)


def _hide(scores: Tensor, row: _Row, first: int, last: int, low: int, high: int, window: int | None) -> None:
    """-inf where a query does not see a key. Without window and tree, only the last n keys need a look."""
    if row.tree is None and (window is None or window > high):
        n = last - first
        if n > 1:
            scores[..., -n:].masked_fill_(_later(n, scores.device)[:, None], -torch.inf)
        return
    scores.masked_fill_(row.hidden_keys(first, low, last, high, window)[None, :, None], -torch.inf)


@functools.lru_cache(maxsize=256)
def _later(n: int, device: torch.device) -> Tensor:
    """bool [n, n]: key j is after query i."""
    return torch.ones(n, n, dtype=torch.bool, device=device).triu(1)


plan_attention = Op("plan_attention", reference=plan_reference, torch=plan_torch, triton=plan_reference)
