"""Prefill attention in GFLOP/s, and what a fork group saves."""

import functools
from collections.abc import Iterator

import torch
from triton.testing import do_bench

from ramet.kernels.attention import extend_attention

TEST = "attention"


def rows() -> Iterator[dict[str, object]]:
    H, G, D, S = 32, 8, 128, 16
    for n in [512, 2048, 8192]:
        step = make_step([n], [n], H, G, D, S)
        times = [
            do_bench(functools.partial(extend_attention.on(b), **step, scale=D**-0.5)) for b in ("triton", "torch")
        ]
        flop = 2 * n * n * H * D  # causal: half of 4 * n * n * H * D
        yield dict(kind="prefill", n=n, ours_ms=times[0], reference_ms=times[1], gflop_per_s=flop / times[0] / 1e6)
    for R, shared in [(8, 1024), (32, 4096)]:
        step = make_step([1] * R, [shared + 64] * R, H, G, D, S, shared=shared)
        groups = ((tuple(range(R)), shared),)
        alone = do_bench(functools.partial(extend_attention.on("triton"), **step, scale=D**-0.5))
        group = do_bench(functools.partial(extend_attention.on("triton"), **step, scale=D**-0.5, groups=groups))
        yield dict(kind="fork", R=R, shared=shared, ours_ms=group, reference_ms=alone)


def make_step(
    new: list[int], lengths: list[int], H: int, G: int, D: int, S: int, shared: int = 0
) -> dict[str, torch.Tensor]:
    pages = max(-(-length // S) for length in lengths)
    tables = torch.arange(len(new) * pages, device="cuda").int().view(len(new), pages)
    tables[:, : shared // S] = tables[0, : shared // S]
    offsets = torch.tensor([0, *new]).cumsum(0).int()
    return dict(
        q=torch.randn(int(offsets[-1]), H, D, device="cuda").bfloat16(),
        key_pages=torch.randn(len(new) * pages, S, G, D, device="cuda").bfloat16(),
        value_pages=torch.randn(len(new) * pages, S, G, D, device="cuda").bfloat16(),
        query_offsets=offsets,
        context_lengths=torch.tensor(lengths, dtype=torch.int32, device="cuda"),
        page_tables=tables,
    )
