"""Sampling with all filters on, beside the form that sorts."""

import functools
from collections.abc import Iterator

import torch
from triton.testing import do_bench

from ramet.kernels.sample import make_inputs, sample


def rows() -> Iterator[dict[str, object]]:
    for R, V in [(1, 151_936), (64, 49_152), (64, 151_936), (256, 151_936)]:
        inputs = make_inputs(R, V, torch.float32, "cuda")
        times = [do_bench(functools.partial(sample.on(b), **inputs)) for b in ("triton", "reference")]
        yield dict(R=R, V=V, ours_ms=times[0], reference_ms=times[1], gb_per_s=4 * R * V / times[0] / 1e6)
