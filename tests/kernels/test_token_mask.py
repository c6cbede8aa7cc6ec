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


def test_masks_may_lie_elsewhere(device: str) -> None:
    inputs = make_inputs(3, 100, torch.float32, device)
    mask, rows = inputs["mask"], torch.tensor([0, 2], dtype=torch.int32, device=device)
    shuffled, numbers = mask[[1, 2, 0]], torch.tensor([2, 1], dtype=torch.int32, device=device)
    for backend in ("triton", "reference"):
        ours, theirs = inputs["logits"].clone(), inputs["logits"].clone()
        apply_token_mask.on(backend)(ours, shuffled, rows, numbers)
        apply_token_mask.on("reference")(theirs, mask, rows)
        assert torch.equal(ours, theirs)
