"""From logprobs to a winner: each method by its definition."""

import math
from collections import Counter

import pytest

from ramet.runtime.selection import ChoiceLogprobs, pick, probabilities, scores


def choice(*tokens: float, end: float | None = None, alone: tuple[float, ...] = ()) -> ChoiceLogprobs:
    return ChoiceLogprobs(tokens, end, alone)


def test_a_long_predictable_option_does_not_win_by_its_length() -> None:
    """bugs.md 37: ranked by total probability, a long word of sure tokens loses to a short sure one."""
    short, long = choice(-0.5, end=-0.1), choice(-6.0, *[-0.01] * 20, end=-0.1)
    total = scores([short, long], "total")
    assert total == pytest.approx([-0.6, -6.3]) and pick(total, "ab", 0, None) == 0
    mean = scores([short, long], "token_length_normalized")
    assert pick(mean, "ab", 0, None) == 1  # what the older rule gives


def test_probabilities_are_shares_of_the_whole() -> None:
    shares = probabilities([math.log(0.3), math.log(0.1), -math.inf])
    assert shares == pytest.approx([0.75, 0.25, 0])
    assert probabilities([-math.inf, -math.inf]) == [0.5, 0.5]
    assert probabilities([-5000.0, -5001.0])[0] == pytest.approx(1 / (1 + math.exp(-1)))


def test_greedy_selection_follows_the_best_token_at_each_place() -> None:
    paths = [choice(-1.0, -0.1), choice(-0.5, -9.0), choice(-0.5, -2.0)]
    assert pick(scores(paths, "greedy_token_selection"), "abc", 0, None) == 2


def test_unconditional_likelihood_takes_out_what_the_text_did_not_bring() -> None:
    common, rare = choice(-1.0, alone=(-1.0,)), choice(-3.0, alone=(-9.0,))
    assert scores([common, rare], "unconditional_likelihood_normalized") == [0.0, 6.0]


def test_draws_follow_the_probabilities_and_the_seed() -> None:
    scored = [math.log(0.7), math.log(0.3)]
    drawn = Counter(pick(scored, "ab", 1.0, seed) for seed in range(2000))
    assert 0.65 < drawn[0] / 2000 < 0.75
    assert len({pick(scored, "ab", 1.0, 7) for _ in range(5)}) == 1
    sharp = Counter(pick(scored, "ab", 0.05, seed) for seed in range(200))
    assert sharp[0] == 200


def test_ties_are_settled_by_name_in_any_order() -> None:
    assert pick([-1.0, -1.0], ["b", "a"], 0, None) == 1
    assert pick([-1.0, -1.0], ["a", "b"], 0, None) == 0
