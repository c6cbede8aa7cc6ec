"""Joining partial attention: equal to attention over all keys, empty states ignored."""

import pytest
import torch

from ramet.kernels.merge_states import make_inputs, merge_states


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("T", "K", "H", "D"), [(1, 1, 1, 1), (2, 3, 3, 17), (5, 2, 2, 64)])
def test_triton_equals_reference(dtype: torch.dtype, T: int, K: int, H: int, D: int, device: str) -> None:
    inputs = make_inputs(T, K, H, D, dtype, device, pad=3)
    for ours, theirs in zip(merge_states.on("triton")(**inputs), merge_states.on("reference")(**inputs), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_token_without_states_gives_zero(device: str) -> None:
    inputs = make_inputs(3, 2, 1, 4, torch.float32, device)
    out, lse = merge_states.on("triton")(**inputs)
    assert out[0].eq(0).all() and lse[0].isneginf().all()


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_parts_of_a_softmax_make_the_whole(backend: str, device: str) -> None:
    g = torch.Generator(device).manual_seed(0)
    scores, values = torch.randn(9, generator=g, device=device) * 20, torch.randn(9, 4, generator=g, device=device)
    cuts = [(0, 2), (2, 3), (3, 9)]
    outputs = torch.stack([scores[a:b].softmax(0) @ values[a:b] for a, b in cuts])[None, :, None]  # [1, K, 1, D]
    lse = torch.stack([scores[a:b].logsumexp(0) for a, b in cuts])[None, :, None]
    out, total = merge_states.on(backend)(outputs, lse)
    torch.testing.assert_close(out[0, 0], scores.softmax(0) @ values)
    torch.testing.assert_close(total[0, 0], scores.logsumexp(0))
