"""The loop that both attention kernels share: a tile of query vectors against a range of one row's paged keys.

A tile's M query vectors are tokens x the heads that share one key/value head (GQA), so keys are loaded once for all.
Softmax runs online in float32: m the largest score so far, l the sum of weights, acc the weighted values; both
are rescaled when m grows.

Keys are numbered by their place in the row's context. `low` and `high` [M] bound what each query sees; what a
token tree forbids among the new tokens comes as bytes (tree_ptr, where each query's row of them begins in tree_row).
"""

from ramet.kernels._triton import tl, triton


@triton.jit
def attend_keys(
    q, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, table_ptr, g, G, D, S,
    key_begin, key_end, low, high, start, tree_ptr, tree_row, key_positions_ptr, query_positions, window,
    scale, soft_cap,
    HAS_CAP: tl.constexpr, INT8: tl.constexpr, HAS_TREE: tl.constexpr, HAS_WINDOW: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """q [M, BLOCK_D] float -> m [M], l [M], acc [M, BLOCK_D]; scores are scale * q . k, bent by soft_cap.

    key_ptr, value_ptr [N, S, G, D]; table_ptr: the row's page ids; keys [key_begin, key_end) are looked at.
    INT8: pages hold codes of rotated keys and values (kv_quantize.py), scales [N, S, G]; q and acc are rotated too.
    """
    m = tl.full([M], -float("inf"), dtype=tl.float32)
    l = tl.zeros([M], dtype=tl.float32)  # noqa: E741  the paper's letter
    acc = tl.zeros([M, BLOCK_D], dtype=tl.float32)
    d = tl.arange(0, BLOCK_D)
    for first in range(key_begin, key_end, N):
        key = first + tl.arange(0, N)
        present = key < key_end
        page = tl.load(table_ptr + key // S, mask=present, other=0).to(tl.int64)  # int64: N * S * G * D can pass 2**31
        row = (page * S + key % S) * G + g
        place = row[:, None] * D + d[None, :]
        inside = present[:, None] & (d[None, :] < D)
        k = tl.load(key_ptr + place, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale  # [M, N]
        if INT8:  # codes are exact in bfloat16; a key's scale belongs to its score
            scores = scores * tl.load(key_scale_ptr + row, mask=present, other=0.0).to(tl.float32)[None, :]
        if HAS_CAP:
            scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores / soft_cap) - 1.0)  # tanh
        visible = present[None, :] & (key[None, :] >= low[:, None]) & (key[None, :] < high[:, None])
        if HAS_TREE:
            new = key - start
            is_new = present & (new >= 0)
            allowed = tl.load(tree_ptr + tree_row[:, None] + new[None, :], mask=visible & is_new[None, :], other=0)
            visible = visible & ((allowed != 0) | (new < 0)[None, :])
            if HAS_WINDOW:  # in a tree, distance is counted in positions, not in places
                position = tl.load(key_positions_ptr + new, mask=is_new, other=0)
                position = tl.where(is_new, position, key)
                visible = visible & (position[None, :] > query_positions[:, None] - window)
        scores = tl.where(visible, scores, -float("inf"))
        higher = tl.maximum(m, tl.max(scores, axis=1))
        safe = tl.where(higher == -float("inf"), 0.0, higher)  # nothing seen yet: exp(-inf - 0) is 0, not NaN
        weights = tl.exp(scores - safe[:, None])
        keep = tl.exp(m - safe)
        l = l * keep + tl.sum(weights, axis=1)  # noqa: E741
        v = tl.load(value_ptr + place, mask=inside, other=0.0)
        if INT8:  # a value's scale belongs to the weight that meets it, not to l
            weights = weights * tl.load(value_scale_ptr + row, mask=present, other=0.0).to(tl.float32)[None, :]
        acc = acc * keep[:, None] + tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
        m = higher
    return m, l, acc
