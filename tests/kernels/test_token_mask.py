"""Masked logits, bit for bit, and the neighbours spared."""

import pytest
import torch

from ramet.kernels.token_mask import apply_token_mask, make_inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("B", "V"), [(1, 32), (2, 33), (3, 1000), (2, 4099)])  # one word, one bit over, odd, ragged
def test_equals_reference_and_spares_the_neighbours(B: int, V: int, dtype: torch.dtype, device: str) -> None:
    ours, theirs = (make_inputs(B, V, dtype, device, pad=7) for _ in range(2))
    apply_token_mask.on("triton")(**ours)
    apply_token_mask.on("reference")(**theirs)
    memory = [inputs["logits"].as_strided((B, V + 7), (V + 7, 1)) for inputs in (ours, theirs)]
    assert torch.equal(*memory)  # nothing is summed, so bit for bit; and what lies past each row as well
