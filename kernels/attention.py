"""Attention of new tokens over the paged keys and values of their rows: the definition, and its torch form.

One mathematical op stands under two names. `extend_attention` takes any number of new tokens per row (prefill chunks,
drafts, token trees, mixed with single tokens); `decode_attention` takes exactly one per row, where a kernel splits the
keys rather than the queries.

    o[t, h] = sum_j softmax_j(cap(scale * q[t, h] . k[j, g])) v[j, g]     g = h // (H / G),  cap(s) = c * tanh(s / c)

Key j of a row's context [0, length) is visible to the row's i-th new token, at index start + i, where
    j <= start + i                              causal; start = length - number of new tokens
    j > start + i - window                      with a sliding window, which counts the token itself
    tree_masks[row][i, j - start]               for new keys, where the row is a token tree (replaces causal among them)

Layout   q                float  [T, H, D]     last axis contiguous
         key_pages        float  [N, S, G, D]  value_pages the same
         query_offsets    int32  [R + 1]       row r owns q[query_offsets[r]:query_offsets[r + 1]]; rows may be empty
         context_lengths  int32  [R]           keys of the row, its new tokens' included (already written)
         page_tables      int32  [R, P]        entries past a row's length are never read
         key_scales       float16  [N, S, G]   where pages are int8: codes of rotated keys (kv_quantize.py); so are
                                               values, with value_scales
         returns          float  [T, H, D]     q's dtype; scores and sums in float32
`groups` ((rows, num_shared_tokens), ...) says which rows share leading pages: a hint, results do not depend on it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ramet.kernels.kv_quantize import read_int8
from ramet.kernels.registry import Op
from ramet.kernels.rotate_heads import rotate_heads_reference

Groups = Sequence[tuple[Sequence[int], int]]

QUERY_BLOCK = 256
"""Queries per torch call: bounds the score matrix of a long prefill to QUERY_BLOCK * context * H floats."""


def extend_attention_reference(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    query_offsets: Tensor,
    context_lengths: Tensor,
    page_tables: Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    tree_masks: Mapping[int, Tensor] | None = None,
    positions: Tensor | None = None,
    groups: Groups = (),
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """The definition: row by row, all scores at once, float32.

    `positions` (int64 [T]) is read only where a tree meets a window: a tree's distance is counted in depth.
    """
    out = torch.empty_like(q)
    for r, (begin, end, length) in enumerate(_rows(query_offsets, context_lengths)):
        if begin == end:
            continue
        keys, values = gather_row(key_pages, value_pages, page_tables[r], length, key_scales, value_scales)
        tree = None if tree_masks is None else tree_masks.get(r)
        visible = visible_keys(
            length - (end - begin), 0, end - begin, length, window, tree, _slice(positions, begin, end)
        )
        out[begin:end] = _attend(q[begin:end], keys, values, visible.to(q.device), scale, soft_cap)
    return out


def extend_attention_torch(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    query_offsets: Tensor,
    context_lengths: Tensor,
    page_tables: Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    tree_masks: Mapping[int, Tensor] | None = None,
    positions: Tensor | None = None,
    groups: Groups = (),
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """Blocks of queries, torch's fused attention where there is no soft cap; keys outside the window are not read."""
    out = torch.empty_like(q)
    for r, (begin, end, length) in enumerate(_rows(query_offsets, context_lengths)):
        if begin == end:
            continue
        start = length - (end - begin)
        keys, values = gather_row(key_pages, value_pages, page_tables[r], length, key_scales, value_scales)
        tree = None if tree_masks is None else tree_masks.get(r)
        at = _slice(positions, begin, end)
        for first in range(0, end - begin, QUERY_BLOCK):
            last = min(first + QUERY_BLOCK, end - begin)
            low = 0 if window is None or tree is not None else max(0, start + first - window + 1)
            high = length if tree is not None else start + last
            visible = visible_keys(start, first, last, length, window, tree, at)[:, low:high].to(q.device)
            block = q[begin + first : begin + last]
            attend = _attend if soft_cap is not None else _attend_fused
            out[begin + first : begin + last] = attend(
                block, keys[low:high], values[low:high], visible, scale, soft_cap
            )
    return out


def decode_attention_reference(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    context_lengths: Tensor,
    page_tables: Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    groups: Groups = (),
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """extend_attention with one new token per row."""
    offsets = torch.arange(q.shape[0] + 1, dtype=torch.int32)
    return extend_attention_reference(
        q, key_pages, value_pages, offsets, context_lengths, page_tables, scale=scale, window=window, soft_cap=soft_cap,
        key_scales=key_scales, value_scales=value_scales,
    )  # fmt: skip


def decode_attention_torch(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    context_lengths: Tensor,
    page_tables: Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    groups: Groups = (),
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """Row by row, so that a row's result does not depend on the longest row beside it."""
    offsets = torch.arange(q.shape[0] + 1, dtype=torch.int32)
    return extend_attention_torch(
        q, key_pages, value_pages, offsets, context_lengths, page_tables, scale=scale, window=window, soft_cap=soft_cap,
        key_scales=key_scales, value_scales=value_scales,
    )  # fmt: skip


def gather_row(
    key_pages: Tensor,
    value_pages: Tensor,
    table: Tensor,
    length: int,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Copies of one row's keys and values, each [length, G, D]; int8 ones read and turned back, as float32."""
    _, S, G, D = key_pages.shape
    pages = table[: -(-length // S)].long()
    keys, values = (pool[pages].view(-1, G, D)[:length] for pool in (key_pages, value_pages))
    if key_scales is None or value_scales is None:
        return keys, values
    scales = (pool[pages].view(-1, G)[:length] for pool in (key_scales, value_scales))
    keys, values = (rotate_heads_reference(read_int8(*pair)) for pair in zip((keys, values), scales, strict=True))
    return keys, values


def visible_keys(
    start: int, first: int, last: int, length: int, window: int | None, tree: Tensor | None, positions: Tensor | None
) -> Tensor:
    """bool [last - first, length]: which keys the new tokens [first, last) of a row see."""
    query = start + torch.arange(first, last)[:, None]
    key = torch.arange(length)[None, :]
    visible = key <= query
    if tree is not None:
        visible[:, start:] = tree[first:last].cpu()
        if positions is not None:  # depth, not index, is the distance in a tree
            query = positions[first:last, None].cpu()
            key = torch.cat([torch.arange(start), positions.cpu()])[None, :]
    if window is not None:
        visible &= key > query - window
    return visible


def _attend(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float, soft_cap: float | None) -> Tensor:
    T, H, D = q.shape
    G = keys.shape[1]
    grouped = q.float().view(T, G, H // G, D)
    scores = torch.einsum("tgrd,jgd->grtj", grouped, keys.float()) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("grtj,jgd->tgrd", weights, values.float()).reshape(T, H, D).to(q.dtype)


def _attend_fused(
    q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float, soft_cap: float | None
) -> Tensor:
    keys, values = (x.to(q.dtype).transpose(0, 1).unsqueeze(0) for x in (keys, values))  # [1, G, L, D]
    mask = None if q.shape[0] == 1 and bool(visible.all()) else visible
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=mask,
        scale=scale,
        enable_gqa=q.shape[1] != keys.shape[1],
    )
    return out.squeeze(0).transpose(0, 1)


def _rows(query_offsets: Tensor, context_lengths: Tensor) -> list[tuple[int, int, int]]:
    offsets, lengths = query_offsets.tolist(), context_lengths.tolist()
    return list(zip(offsets[:-1], offsets[1:], lengths, strict=True))


def _slice(positions: Tensor | None, begin: int, end: int) -> Tensor | None:
    return None if positions is None else positions[begin:end]


extend_attention = Op(
    "extend_attention",
    reference=extend_attention_reference,
    torch=extend_attention_torch,
    triton="extend_attention:extend_attention_triton",
)
decode_attention = Op(
    "decode_attention",
    reference=decode_attention_reference,
    torch=decode_attention_torch,
    triton="decode_attention:decode_attention_triton",
)
