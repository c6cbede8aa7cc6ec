"""New keys and values into scattered slots, alone and with the rotation fused in front."""

import pytest
import torch

from ramet.kernels.kv_write import kv_write, make_inputs, rope_kv_write

SHAPES = [(1, 2, 1, 8, 1), (5, 6, 2, 12, 4), (9, 3, 3, 16, 16)]


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("T", "H", "G", "D", "S"), SHAPES)
def test_write_equals_reference_bit_for_bit(
    backend: str, dtype: torch.dtype, T: int, H: int, G: int, D: int, S: int, device: str
) -> None:
    names = ("key", "value", "key_pages", "value_pages", "slots")
    ours, theirs = ({n: make_inputs(T, H, G, D, S, dtype, device, pad=2)[n] for n in names} for _ in range(2))
    kv_write.on(backend)(**ours)
    kv_write.on("reference")(**theirs)
    for name in ("key_pages", "value_pages"):  # NaN where nothing was written: the neighbours are spared
        torch.testing.assert_close(ours[name], theirs[name], atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("T", "H", "G", "D", "S"), SHAPES)
def test_fused_rotation_equals_reference(
    dtype: torch.dtype, T: int, H: int, G: int, D: int, S: int, device: str
) -> None:
    ours, theirs = (make_inputs(T, H, G, D, S, dtype, device, pad=2) for _ in range(2))
    rope_kv_write.on("triton")(**ours)
    rope_kv_write.on("reference")(**theirs)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-6
    for name in ("q", "key_pages", "value_pages"):
        torch.testing.assert_close(ours[name], theirs[name], atol=tolerance, rtol=tolerance, equal_nan=True)


def test_padding_slots_are_skipped(device: str) -> None:
    inputs = make_inputs(3, 2, 1, 8, 4, torch.float32, device)
    inputs["slots"][1] = -1
    rope_kv_write.on("triton")(**inputs)
    written = ~inputs["key_pages"].isnan().all(-1).flatten()
    assert written.nonzero().flatten().tolist() == sorted(inputs["slots"][[0, 2]].tolist())
