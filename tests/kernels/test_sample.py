"""Drawing tokens without a sort: the same tokens as with one, the same noise as the runtime's sampler, right
frequencies."""

import pytest
import torch

from ramet.kernels.sample import log_exponentials_reference, make_inputs, sample
from ramet.runtime.sampling.noise import log_exponentials


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("R", "V"), [(0, 5), (1, 1), (13, 33), (7, 700)])
def test_triton_equals_reference(dtype: torch.dtype, R: int, V: int, device: str) -> None:
    inputs = make_inputs(R, V, dtype, device, pad=5)
    ours, theirs = sample.on("triton")(**inputs, block=256), sample.on("reference")(**inputs)  # type: ignore[call-arg]
    assert ours[0].tolist() == theirs[0].tolist()
    torch.testing.assert_close(ours[1], theirs[1], atol=1e-5, rtol=1e-5)


def test_masked_tokens_are_never_drawn(device: str) -> None:
    inputs = make_inputs(12, 64, torch.float32, device)
    inputs["logits"][:, 1:] = float("-inf")
    for backend in ("triton", "reference"):
        assert sample.on(backend)(**inputs)[0].eq(0).all()


def test_the_noise_is_that_of_the_runtime_bit_for_bit() -> None:
    keys = torch.tensor([[1, -2], [-(2**31), 2**31 - 1], [123456789, 987654321]], dtype=torch.int32)
    assert torch.equal(log_exponentials_reference(keys, 5000), log_exponentials(keys, 5000))


def test_frequencies_are_the_probabilities() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    num = 20_000
    keys = torch.randint(-(2**31), 2**31, (num, 2), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    ones, zeros = torch.ones(num), torch.zeros(num)
    tokens, _ = sample.on("reference")(logits.repeat(num, 1), 2 * ones, zeros.int(), ones, zeros, keys)
    torch.testing.assert_close(torch.bincount(tokens, minlength=4) / num, (logits / 2).softmax(0), atol=0.015, rtol=0)
