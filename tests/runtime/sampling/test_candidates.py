"""The native search for candidates never loses a winner, so a draw is the same with it and without."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.kernels.cpu.build import usable_variants
from ramet.runtime.sampling import candidates as module
from ramet.runtime.sampling import draw
from ramet.runtime.sampling.candidates import MIN_VOCABULARY, candidates
from ramet.runtime.sampling.draw import DrawSettings, draw_settings, draw_tokens
from ramet.runtime.types import Sampling

CPU = torch.device("cpu")
VARIANTS = [variant.name for variant in usable_variants()]


def case(
    seed: int, V: int, *, scale: float, temperature: float, denied: float = 0.0, R: int = 3
) -> tuple[torch.Tensor, DrawSettings]:
    """Rows of a larger tensor, as an executor cuts a model's padding off."""
    g = torch.Generator().manual_seed(seed)
    logits = (torch.randn(R, V + 13, generator=g) * scale)[:, :V]
    logits[torch.rand(R, V, generator=g) < denied] = float("-inf")
    logits[:, seed % V] = 0.0  # one is always allowed
    return logits, draw_settings([Sampling(temperature=temperature)] * R, [seed + i for i in range(R)], [9] * R, V, CPU)


@pytest.mark.parametrize("variant", VARIANTS)
@given(
    st.integers(0, 10_000),
    st.sampled_from([MIN_VOCABULARY, 4097, 5003, 49_152]),
    st.sampled_from([0.0, 0.1, 2.0, 9.0]),
    st.sampled_from([0.01, 0.7, 1.0, 3.0, 50.0]),
    st.sampled_from([0.0, 0.9, 0.9999]),
)
@settings(max_examples=40, deadline=None)
def test_the_winner_is_always_among_them(
    variant: str, seed: int, V: int, scale: float, temperature: float, denied: float
) -> None:
    logits, how = case(seed, V, scale=scale, temperature=temperature, denied=denied)
    found = candidates(logits, how.temperature, how.keys, variant=variant)
    assert found is not None and found.shape[1] <= module.CAPACITY
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "candidates", lambda *_: None)
        winners = draw_tokens(logits, how)
    assert draw_tokens(logits, how).tolist() == winners.tolist()
    assert (found == winners[:, None]).any(-1).all()


def test_a_peaked_row_names_few() -> None:
    logits, how = case(1, 49_152, scale=3.0, temperature=1.0, R=8)
    found = candidates(logits, how.temperature, how.keys)
    assert found is not None and found.shape[1] < 40


@pytest.mark.parametrize("why", ["no room", "nothing allowed", "small"])
def test_whole_rows_are_drawn_where_it_cannot_tell(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, how = case(1, 100 if why == "small" else 5_000, scale=3.0, temperature=1.0)
    if why == "no room":
        monkeypatch.setattr(module, "CAPACITY", 1)
    if why == "nothing allowed":
        logits[1] = float("-inf")
    assert candidates(logits, how.temperature, how.keys) is None
