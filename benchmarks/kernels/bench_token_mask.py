"""Token mask over large vocabularies."""

import functools
from collections.abc import Iterator

import torch
from triton.testing import do_bench

from ramet.kernels.token_mask import apply_token_mask, make_inputs


def rows() -> Iterator[dict[str, object]]:
    for B, V in [(8, 32_000), (64, 151_936), (256, 262_144)]:
        inputs = make_inputs(B, V, torch.bfloat16, "cuda")
        times = [do_bench(functools.partial(apply_token_mask.on(b), **inputs)) for b in ("triton", "reference")]
        num_bytes = len(inputs["rows"]) * (V / 8 + V)  # a random mask denies half of 2-byte logits
        yield dict(B=B, V=V, ours_ms=times[0], reference_ms=times[1], gb_per_s=num_bytes / times[0] / 1e6)
