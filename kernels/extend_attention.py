"""Extend attention for GPUs: any number of new tokens per row, fork groups and token trees included.

Same mathematics and layout as kernels/attention.py. The host cuts the step once into work items (`plan_extend`), the
device works them: an item is a tile of query tokens against a range of keys in one page table. Three kinds, one kernel:

    a tile of a long row against all keys that it may see         -> its result is final
    the tokens of a fork group against the pages they share       -> partial (cascade attention: read once for all)
    the tokens of a row of such a group against its own keys      -> partial

Partial results of a token are joined by merge_states, shared prefix first. Rows outside groups are never split: decode
steps, where splitting pays, go through decode_attention.
Traffic  per item 2 * keys * D * itemsize for each of G heads, whatever the number of queries in its tile"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ramet.kernels._attend import attend_keys
from ramet.kernels._triton import tl, triton
from ramet.kernels.attention import Groups
from ramet.kernels.checks import check_tensor
from ramet.kernels.decode_attention import check_pages
from ramet.kernels.merge_states import merge_states_triton
from ramet.kernels.rotate_heads import rotate_heads_triton

_ITEM_FIELDS = 5


class Item(NamedTuple):
    """A tile of queries against keys [key_begin, key_end) of one page table."""

    table_row: int
    query_begin: int
    """Of its tokens in the plan's list of query tokens, ..."""
    num_queries: int
    """... and how many: at most the tile's height."""
    key_begin: int
    key_end: int


class ExtendPlan(NamedTuple):
    """A step cut into items. Tensors lie on the device of the step."""

    items: Tensor
    """int32 [I, 5]  fields of Item"""
    queries: Tensor
    """int32 [Q]  token of each query; a token occurs once for each of its partial results"""
    states: Tensor
    """int32 [Q]  0: the token's first result, 1: its second"""
    row_begins: Tensor
    """int32 [T]  the first token of each token's row"""
    starts: Tensor
    """int32 [T]  keys of each token's row before this step"""
    num_states: Tensor
    """int32 [T]  results of each token: 1, or 2 where it belongs to a group"""
    most_states: int


def plan_extend(
    query_offsets: Tensor, context_lengths: Tensor, groups: Groups, tile: int, *, has_trees: bool = False
) -> ExtendPlan:
    """Cut a step into items of at most `tile` tokens. Reads offsets and lengths on the host."""
    offsets, lengths = query_offsets.tolist(), context_lengths.tolist()
    plan = _Planner(offsets, lengths, tile, has_trees)
    for rows, num_shared in groups:
        plan.add_group(rows, num_shared)
    for row in range(len(lengths)):
        plan.add_row(row)
    return plan.finish(query_offsets.device)


class _Planner:
    def __init__(self, offsets: Sequence[int], lengths: Sequence[int], tile: int, has_trees: bool) -> None:
        self.offsets, self.lengths, self.tile, self.has_trees = offsets, lengths, tile, has_trees
        self.items: list[Item] = []
        self.queries: list[int] = []
        self.states: list[int] = []
        self.shared = [0] * len(lengths)

    def start(self, row: int) -> int:
        return self.lengths[row] - (self.offsets[row + 1] - self.offsets[row])

    def add_group(self, rows: Sequence[int], num_shared: int) -> None:
        """The shared keys, for all tokens of the rows at once. A row is served by the first group that has it."""
        mine = [row for row in rows if not self.shared[row] and num_shared <= self.start(row) and self._has_tokens(row)]
        if len(mine) < 2 or num_shared <= 0:
            return
        tokens = [token for row in mine for token in range(self.offsets[row], self.offsets[row + 1])]
        for row in mine:
            self.shared[row] = num_shared
        for first in range(0, len(tokens), self.tile):
            self._add(mine[0], tokens[first : first + self.tile], 0, num_shared, state=0)

    def add_row(self, row: int) -> None:
        begin, end, shared = self.offsets[row], self.offsets[row + 1], self.shared[row]
        for first in range(begin, end, self.tile):
            last = min(first + self.tile, end)
            # causal: the tile's last token sees no further than itself; a tree's mask may look ahead
            key_end = self.lengths[row] if self.has_trees else self.start(row) + last - begin
            self._add(row, range(first, last), shared, key_end, state=1 if shared else 0)

    def _has_tokens(self, row: int) -> bool:
        return self.offsets[row + 1] > self.offsets[row]

    def _add(self, table_row: int, tokens: Sequence[int], key_begin: int, key_end: int, *, state: int) -> None:
        self.items.append(Item(table_row, len(self.queries), len(tokens), key_begin, key_end))
        self.queries.extend(tokens)
        self.states.extend([state] * len(tokens))

    def finish(self, device: torch.device) -> ExtendPlan:
        counts = [end - begin for begin, end in itertools.pairwise(self.offsets)]
        per_token = {
            "row_begins": [begin for begin, n in zip(self.offsets[:-1], counts, strict=True) for _ in range(n)],
            "starts": [self.start(row) for row, n in enumerate(counts) for _ in range(n)],
            "num_states": [1 + (self.shared[row] > 0) for row, n in enumerate(counts) for _ in range(n)],
        }

        def tensor(values: Sequence[object]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        return ExtendPlan(
            items=tensor(self.items).view(-1, _ITEM_FIELDS),
            queries=tensor(self.queries),
            states=tensor(self.states),
            most_states=max(per_token["num_states"], default=1),
            **{name: tensor(values) for name, values in per_token.items()},
        )


@triton.jit
def _extend_kernel(
    q_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, tables_ptr, items_ptr, queries_ptr, states_ptr,
    row_begins_ptr, starts_ptr, tree_ptr, tree_rows_ptr, positions_ptr, out_ptr, lse_ptr,
    q_stride_t, q_stride_h, table_stride, H, G, D, S, most_states, window, scale, soft_cap,
    HAS_CAP: tl.constexpr, INT8: tl.constexpr, HAS_TREE: tl.constexpr, HAS_WINDOW: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    item = items_ptr + tl.program_id(0) * 5
    g = tl.program_id(1)
    table_row = tl.load(item).to(tl.int64)
    query_begin = tl.load(item + 1)
    num_queries = tl.load(item + 2)
    key_begin = tl.load(item + 3)
    key_end = tl.load(item + 4)
    share = H // G
    i = tl.arange(0, M)
    d = tl.arange(0, BLOCK_D)
    is_query = i < num_queries * share
    token = tl.load(queries_ptr + query_begin + i // share, mask=is_query, other=0).to(tl.int64)
    state = tl.load(states_ptr + query_begin + i // share, mask=is_query, other=0)
    head = g * share + i % share
    q_place = token[:, None] * q_stride_t + head[:, None] * q_stride_h + d[None, :]
    inside = is_query[:, None] & (d[None, :] < D)
    q = tl.load(q_ptr + q_place, mask=inside, other=0.0)
    start = tl.load(starts_ptr + token, mask=is_query, other=0)
    row_begin = tl.load(row_begins_ptr + token, mask=is_query, other=0)
    index = start + (token - row_begin).to(tl.int32)  # the token's own place in its context
    high = tl.where(is_query, index + 1, 0)
    low = tl.zeros([M], dtype=tl.int32)
    tree_row = tl.full([M], -1, dtype=tl.int32)
    query_position = index
    row_start = key_end
    key_positions = positions_ptr
    if HAS_TREE:
        tree_row = tl.load(tree_rows_ptr + token, mask=is_query, other=0)
        high = tl.where(is_query, key_end, 0)
        # an item has the tokens of one row, or it is a group's and looks at no new key
        row_start = tl.max(tl.where(is_query, start, 0), axis=0)
        key_positions = positions_ptr + tl.max(tl.where(is_query, row_begin, 0), axis=0)
        query_position = tl.load(positions_ptr + token, mask=is_query, other=0).to(tl.int32)
    if HAS_WINDOW:
        low = tl.maximum(0, query_position - window + 1)
        lowest = tl.min(tl.where(is_query, low, key_end), axis=0)
        key_begin = tl.maximum(key_begin, lowest // N * N)
    m, l, acc = attend_keys(  # noqa: E741
        q, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, tables_ptr + table_row * table_stride, g, G, D, S,
        key_begin, key_end, low, high, row_start, tree_ptr, tree_row, key_positions, query_position, window,
        scale, soft_cap, HAS_CAP, INT8, HAS_TREE, HAS_WINDOW, M, N, BLOCK_D,
    )  # fmt: skip
    divisor = tl.where(l > 0, l, 1.0)
    at = (token * most_states + state) * H + head
    tl.store(lse_ptr + at, tl.where(l > 0, m + tl.log(divisor), -float("inf")), mask=is_query)
    tl.store(out_ptr + at[:, None] * D + d[None, :], (acc / divisor[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


def extend_attention_triton(
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
    plan: ExtendPlan | None = None,
    tile: int = 64,
    block: int = 32,
) -> Tensor:
    """`tile`: query vectors per program, at least; `block`: keys per turn. A `plan` of the same step saves making
    one.
    """
    T, H, D = q.shape
    _, S, G, _ = key_pages.shape
    check_pages(q, key_pages, value_pages, key_scales, value_scales)
    check_tensor("page_tables", page_tables, dtype=torch.int32, shape=(len(context_lengths), None), device=q.device)
    if T == 0:
        return torch.empty_like(q)
    M = max(16, triton.next_power_of_2(max(tile, H // G)))
    if plan is None:
        plan = plan_extend(query_offsets, context_lengths, groups, M // (H // G), has_trees=bool(tree_masks))
    trees = _flat_trees(query_offsets, context_lengths, tree_masks, q.device)
    direct = plan.most_states == 1
    shape = (T, plan.most_states, H, D)
    out = torch.empty(shape, dtype=q.dtype if direct else torch.float32, device=q.device)
    lse = torch.empty(shape[:3], dtype=torch.float32, device=q.device)
    if positions is None:
        positions = plan.starts + torch.arange(T, device=q.device) - plan.row_begins
    is_int8 = key_scales is not None
    q = rotate_heads_triton(q) if is_int8 else q
    _extend_kernel[(len(plan.items), G)](
        q, key_pages, value_pages, key_scales if key_scales is not None else q,
        value_scales if value_scales is not None else q, page_tables, plan.items, plan.queries, plan.states,
        plan.row_begins, plan.starts, trees[0], trees[1], positions.to(torch.int32), out, lse,
        q.stride(0), q.stride(1), page_tables.stride(0), H, G, D, S, plan.most_states, window or 0, scale,
        soft_cap or 0.0, HAS_CAP=soft_cap is not None, INT8=is_int8, HAS_TREE=bool(tree_masks),
        HAS_WINDOW=window is not None, M=M, N=block, BLOCK_D=max(16, triton.next_power_of_2(D)),
    )  # fmt: skip
    merged = out[:, 0] if direct else merge_states_triton(out, lse, plan.num_states)[0]
    return (rotate_heads_triton(merged) if is_int8 else merged).to(q.dtype)


def _flat_trees(
    query_offsets: Tensor, context_lengths: Tensor, tree_masks: Mapping[int, Tensor] | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Masks of all rows end to end, uint8, and where each token's row of its mask begins. Rows without a tree are
    causal.
    """
    if not tree_masks:
        none = torch.zeros(1, dtype=torch.int32, device=device)
        return none, none
    offsets = query_offsets.tolist()
    pieces: list[Tensor] = []
    begins: list[int] = []
    size = 0
    for row, (begin, end) in enumerate(itertools.pairwise(offsets)):
        n = end - begin
        mask = tree_masks.get(row)
        pieces.append(torch.tril(torch.ones(n, n)) if mask is None else mask.cpu())
        begins += [size + i * n for i in range(n)]
        size += n * n
    flat = torch.cat([piece.to(torch.uint8).flatten() for piece in pieces])
    return flat.to(device), torch.tensor(begins, dtype=torch.int32, device=device)
