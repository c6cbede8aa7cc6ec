"""Decode attention: bytes of keys and values per second. The reference is too slow at these sizes: torch's form
stands in."""

import functools
from collections.abc import Iterator

import torch
from triton.testing import do_bench

from ramet.kernels.attention import decode_attention

TEST = "attention"


def rows() -> Iterator[dict[str, object]]:
    for R, length in [(1, 2048), (16, 2048), (64, 2048), (64, 8192), (256, 1024)]:
        H, G, D, S = 32, 8, 128, 16
        pages = length // S
        keys, values = (torch.randn(R * pages, S, G, D, device="cuda").bfloat16() for _ in range(2))
        step = dict(
            q=torch.randn(R, H, D, device="cuda").bfloat16(),
            key_pages=keys,
            value_pages=values,
            context_lengths=torch.full((R,), length, dtype=torch.int32, device="cuda"),
            page_tables=torch.randperm(R * pages, device="cuda").int().view(R, pages),
        )
        times = [
            do_bench(functools.partial(decode_attention.on(b), **step, scale=D**-0.5)) for b in ("triton", "torch")
        ]
        num_bytes = 4 * R * length * G * D
        yield dict(R=R, length=length, ours_ms=times[0], reference_ms=times[1], gb_per_s=num_bytes / times[0] / 1e6)
