"""SwiGLU and GeGLU on every backend."""

from typing import Any

import pytest
import torch

from ramet.kernels.gated import geglu, make_inputs, swiglu


@pytest.mark.parametrize("op", [swiglu, geglu], ids=["swiglu", "geglu"])
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("T", "F"), [(0, 4), (1, 1), (3, 33), (2, 1536)])
def test_equals_reference(op: Any, backend: str, dtype: torch.dtype, T: int, F: int, device: str) -> None:
    inputs = make_inputs(T, F, dtype, device, pad=3)
    tolerance = 0.03 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(op.on(backend)(**inputs), op.on("reference")(**inputs), atol=tolerance, rtol=tolerance)


@pytest.mark.filterwarnings("ignore:overflow")  # numpy says so in the interpreter; the result is right
def test_extreme_gates_do_not_overflow(device: str) -> None:
    extreme = torch.tensor([[-1e4, 1e4, 1.0, 1.0]], device=device)
    for op in (swiglu, geglu):
        for backend in ("reference", "triton"):
            assert op.on(backend)(extreme).tolist() == [[0.0, 1e4]]
