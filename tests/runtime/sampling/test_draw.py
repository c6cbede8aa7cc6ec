"""Draws follow the definition exactly and the distribution statistically, and depend on nothing but their own row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.sampling.draw import (
    argmax_rows,
    draw_reference,
    draw_settings,
    draw_tokens,
    is_greedy,
    kept_reference,
)
from ramet.runtime.sampling.noise import log_exponentials, noise_bits_reference, noise_keys
from ramet.runtime.types import Sampling

CPU = torch.device("cpu")
SAMPLINGS = {
    "plain": Sampling(),
    "cold": Sampling(temperature=0.3),
    "hot": Sampling(temperature=20.0),
    "top_k": Sampling(top_k=5),
    "top_p": Sampling(top_p=0.7),
    "tiny_top_p": Sampling(top_p=1e-9),
    "min_p": Sampling(min_p=0.2),
    "min_p_of_one": Sampling(min_p=1.0),
    "top_k_above_vocabulary": Sampling(top_k=10_000),
    "top_k_then_top_p": Sampling(top_k=8, top_p=0.6, temperature=1.5),
    "all": Sampling(top_k=20, top_p=0.9, min_p=0.05, temperature=0.8),
}


def draw(logits: torch.Tensor, rows: list[Sampling], seeds: list[int], positions: list[int]) -> list[int]:
    return draw_tokens(logits, draw_settings(rows, seeds, positions, logits.shape[1], CPU)).tolist()


def random_logits(R: int, V: int, *, scale: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(R, V, generator=torch.Generator().manual_seed(seed)) * scale


@given(
    st.integers(0, 2**63),
    st.sampled_from([7, 63, 64, 65, 200]),
    st.sampled_from(list(SAMPLINGS.values())),
    st.sampled_from([1.0, 0.25]),
)
@settings(max_examples=150, deadline=None)
def test_equals_the_reference(seed: int, V: int, sampling: Sampling, grain: float) -> None:
    """`grain` rounds the logits, so that many tie."""
    logits = (random_logits(1, V, seed=seed % 1000) / grain).round() * grain
    assert draw(logits, [sampling], [seed], [3]) == [draw_reference(logits[0].tolist(), sampling, seed, 3)]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_frequencies_pass_chi_square(sampling: Sampling) -> None:
    V, num_draws = 40, 6000
    logits = random_logits(1, V, scale=1.5)
    counts = np.bincount(
        draw(logits.expand(num_draws, V), [sampling] * num_draws, [7] * num_draws, list(range(num_draws))), minlength=V
    )
    expected = np.zeros(V)
    for token, probability in kept_reference(logits[0].tolist(), sampling).items():
        expected[token] = probability * num_draws
    assert not counts[expected == 0].any()
    common = expected >= 5
    statistic = ((counts[common] - expected[common]) ** 2 / expected[common]).sum()
    freedom = max(1, int(common.sum()) - 1)
    assert statistic < freedom + 5 * np.sqrt(2 * freedom) + 5  # beyond five sigma


@pytest.mark.parametrize(("num_seeds", "num_positions"), [(4000, 1), (1, 4000), (64, 64)])
def test_noise_is_uniform_and_independent_over_seeds_positions_and_tokens(num_seeds: int, num_positions: int) -> None:
    seeds = [seed for seed in range(num_seeds) for _ in range(num_positions)]
    positions = [*range(num_positions)] * num_seeds
    uniform = torch.exp(-torch.exp(log_exponentials(torch.from_numpy(noise_keys(seeds, positions)), 8))).double()
    assert abs(uniform.mean() - 0.5) < 0.01
    for first, second in ((uniform[:-1], uniform[1:]), (uniform[:, :-1], uniform[:, 1:])):  # next draw, next token
        assert abs(float(((first - 0.5) * (second - 0.5)).mean() * 12)) < 0.03
    counts = torch.histc(uniform, 64, 0, 1)
    expected = uniform.numel() / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * np.sqrt(2 * 63)


def test_noise_equals_its_definition_for_any_token_and_key() -> None:
    keys = torch.tensor([[0, 0], [-1, 1], [2**31 - 1, -(2**31)]], dtype=torch.int32)
    expected = [
        [np.log(-np.log1p(-(noise_bits_reference((int(a), int(b)), token) + 0.5) * 2.0**-31)) for token in range(300)]
        for a, b in keys
    ]
    assert torch.allclose(log_exponentials(keys, 300).double(), torch.tensor(expected), atol=1e-5)
    some = torch.tensor([[5, 299, 0]] * 3)
    assert torch.equal(log_exponentials(keys, 300, some), log_exponentials(keys, 300).gather(1, some))


def test_a_row_draws_the_same_alone_and_in_any_batch() -> None:
    logits = random_logits(len(SAMPLINGS), 5000, scale=2.0)
    rows, seeds, positions = list(SAMPLINGS.values()), list(range(len(SAMPLINGS))), [9] * len(SAMPLINGS)
    together = draw(logits, rows, seeds, positions)
    alone = [draw(logits[i : i + 1], [rows[i]], [seeds[i]], [9])[0] for i in range(len(rows))]
    backwards = draw(logits.flip(0), rows[::-1], seeds[::-1], positions)
    assert together == alone == backwards[::-1]


@pytest.mark.parametrize("scale", [0.001, 1.0, 5.0])
def test_wide_and_narrow_kept_sets_equal_the_reference(scale: float) -> None:
    """Nucleus inside the head, beyond it, and nearly the whole vocabulary: each takes another way to the same token."""
    logits = random_logits(1, 12_000, scale=scale)
    for sampling in (
        Sampling(top_p=0.95),
        Sampling(top_p=0.999),
        Sampling(top_k=2000, top_p=0.99),
        Sampling(top_k=9000),
    ):
        kept = kept_reference(logits[0].tolist(), sampling)
        drawn = draw(logits.expand(50, -1), [sampling] * 50, [1] * 50, list(range(50)))
        assert set(drawn) <= set(kept)
        assert drawn[0] == draw_reference(logits[0].tolist(), sampling, 1, 0)


@pytest.mark.parametrize("temperature", [1e-4, 2.0, 100.0])
def test_extreme_settings_draw_a_token(temperature: float) -> None:
    logits = random_logits(1, 1000, scale=30.0)
    logits[0, ::2] = float("-inf")
    for sampling in (Sampling(temperature=temperature, top_p=1e-4), Sampling(temperature=temperature, top_k=999)):
        assert draw(logits, [sampling], [0], [0])[0] % 2 == 1


def test_only_the_allowed_token_can_be_drawn() -> None:
    logits = torch.full((1, 300), float("-inf"))
    logits[0, 123] = -50.0
    assert [draw(logits, [sampling], [0], [0]) for sampling in SAMPLINGS.values()] == [[123]] * len(SAMPLINGS)


def test_a_tiny_temperature_and_top_k_of_one_are_greedy() -> None:
    assert is_greedy(Sampling(temperature=0))
    assert is_greedy(Sampling(temperature=1e-9))
    assert is_greedy(Sampling(top_k=1))
    assert not is_greedy(Sampling(temperature=1e-4))
    assert argmax_rows(torch.tensor([[1.0, 3.0, 3.0]])).tolist() == [1]


def test_negative_and_huge_seeds_are_seeds() -> None:
    logits = random_logits(1, 100, scale=0.1)
    assert draw(logits, [Sampling()], [-1], [0]) == draw(logits, [Sampling()], [2**64 - 1], [0])
