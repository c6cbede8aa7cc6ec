"""Penalties in place, for tokens in the prompt, in the output, in both and in none."""

import pytest
import torch

from ramet.kernels.penalties import apply_penalties


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("R", "V"), [(0, 5), (1, 32), (3, 77), (2, 2050)])
def test_triton_equals_reference(dtype: torch.dtype, R: int, V: int, device: str) -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(R, V + 3, generator=g).to(dtype).to(device)
    prompt = torch.randint(-(2**31), 2**31, (R, -(-V // 32)), generator=g, dtype=torch.int32).to(device)
    counts = torch.randint(0, 3, (R, V), generator=g, dtype=torch.int32).to(device)
    settings = [torch.rand(R, generator=g).to(device) + 0.5 for _ in range(3)]
    ours, theirs = logits.clone(), logits.clone()
    apply_penalties.on("triton")(ours[:, :V], prompt, counts, *settings)
    apply_penalties.on("reference")(theirs[:, :V], prompt, counts, *settings)
    torch.testing.assert_close(ours, theirs, atol=1e-6 if dtype == torch.float32 else 0.03, rtol=0.01)
