"""Grouped product of a mixture of experts."""

import functools
from collections.abc import Iterator

import torch
from triton.testing import do_bench

from ramet.kernels.moe import grouped_linear, moe_route


def rows() -> Iterator[dict[str, object]]:
    for T, E, k, K, N in [(16, 64, 6, 2048, 1408), (512, 64, 6, 2048, 1408), (2048, 8, 2, 4096, 14336)]:
        x, w = torch.randn(T, K, device="cuda").bfloat16(), torch.randn(E, N, K, device="cuda").bfloat16()
        experts = moe_route(torch.randn(T, E, device="cuda"), k)[1]
        times = [do_bench(functools.partial(grouped_linear.on(b), x, w, experts)) for b in ("triton", "reference")]
        flop = 2 * T * k * K * N
        yield dict(T=T, E=E, k=k, K=K, N=N, ours_ms=times[0], reference_ms=times[1], gflop_per_s=flop / times[0] / 1e6)
