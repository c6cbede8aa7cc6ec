"""RMSNorm on every backend, at sizes around powers of two, with strided rows."""

import pytest
import torch

from ramet.kernels.rmsnorm import make_inputs, rms_norm


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("T", "d"), [(0, 8), (1, 1), (3, 33), (2, 576)])
def test_equals_reference(
    backend: str, dtype: torch.dtype, with_residual: bool, offset: float, T: int, d: int, device: str
) -> None:
    ours, theirs = (make_inputs(T, d, dtype, device, pad=5) for _ in range(2))
    if not with_residual:
        ours.pop("residual"), theirs.pop("residual")
    got = rms_norm.on(backend)(**ours, eps=1e-5, offset=offset)  # type: ignore[arg-type]
    expected = rms_norm.on("reference")(**theirs, eps=1e-5, offset=offset)  # type: ignore[arg-type]
    torch.testing.assert_close(got, expected, atol=0.02 if dtype == torch.bfloat16 else 1e-5, rtol=0.01)
    if with_residual:
        # the sum is rounded the same way; but the interpreter cuts bfloat16 off where a GPU rounds it
        exact = backend == "torch" or dtype == torch.float32
        torch.testing.assert_close(ours["residual"], theirs["residual"], atol=0, rtol=0 if exact else 0.01)
