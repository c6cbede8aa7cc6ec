"""RMSNorm with residual at decode and prefill sizes."""

import functools
from collections.abc import Iterator

import torch
from triton.testing import do_bench

from ramet.kernels.rmsnorm import make_inputs, rms_norm


def rows() -> Iterator[dict[str, object]]:
    for T, d in [(16, 4096), (512, 4096), (8192, 4096), (8192, 576)]:
        inputs = make_inputs(T, d, torch.bfloat16, "cuda")
        times = [do_bench(functools.partial(rms_norm.on(b), **inputs, eps=1e-5)) for b in ("triton", "reference")]
        yield dict(T=T, d=d, ours_ms=times[0], reference_ms=times[1], gb_per_s=8 * T * d / times[0] / 1e6)
