"""4-bit and 8-bit products: bytes of weights per second at few rows."""

import functools
from collections.abc import Iterator

import torch
from triton.testing import do_bench

from ramet.kernels.quantized_linear import make_inputs, quantized_linear


def rows() -> Iterator[dict[str, object]]:
    for bits in (4, 8):
        for T, N, K in [(1, 4096, 4096), (16, 4096, 4096), (16, 14336, 4096), (256, 4096, 4096)]:
            inputs = make_inputs(T, N, K, bits, 32, torch.bfloat16, "cuda")
            times = [do_bench(functools.partial(quantized_linear.on(b), **inputs)) for b in ("triton", "reference")]
            num_bytes = N * K * (bits / 8 + 4 / 32)
            yield dict(
                bits=bits, T=T, N=N, K=K, ours_ms=times[0], reference_ms=times[1], gb_per_s=num_bytes / times[0] / 1e6
            )
