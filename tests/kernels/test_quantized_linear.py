"""Products with 4-bit and 8-bit weights, odd sizes, with and without minima."""

import pytest
import torch

from ramet.kernels.quantized_linear import expand_weights, make_inputs, pack_nibbles, quantized_linear, unpack_nibbles


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("minima", [True, False])
@pytest.mark.parametrize(("T", "N", "K", "group"), [(0, 3, 32, 32), (1, 1, 32, 32), (3, 70, 96, 32), (17, 65, 128, 64)])
def test_triton_equals_reference(bits: int, minima: bool, T: int, N: int, K: int, group: int, device: str) -> None:
    inputs = make_inputs(T, N, K, bits, group, torch.float32, device, minima=minima, pad=5)
    ours, theirs = (quantized_linear.on(backend)(**inputs) for backend in ("triton", "reference"))
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)


def test_a_row_has_the_same_bits_in_any_batch(device: str) -> None:
    inputs = make_inputs(20, 33, 64, 4, 32, torch.float32, device)
    together = quantized_linear.on("triton")(**inputs)
    alone = quantized_linear.on("triton")(**{**inputs, "x": inputs["x"][18:19]})
    assert torch.equal(alone[0], together[18])


def test_q4_1_blocks_become_codes_scales_and_minima() -> None:
    """ggml keeps input j and j + 16 of a block in one byte; here neighbours share one."""
    g = torch.Generator().manual_seed(0)
    nibbles = torch.randint(0, 16, (2, 32), generator=g, dtype=torch.uint8)
    assert torch.equal(unpack_nibbles(pack_nibbles(nibbles)), nibbles)
    scales, minima = torch.tensor([[0.5], [0.25]]).half(), torch.tensor([[-1.0], [3.0]]).half()
    expected = nibbles.float() * scales.float() + minima.float()
    assert torch.equal(expand_weights(pack_nibbles(nibbles), scales, minima), expected)
