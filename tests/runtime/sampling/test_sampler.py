"""Penalties, bias, masks and logprobs follow their definitions; a row never disturbs another."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.sampling import masks
from ramet.runtime.sampling.logprobs import token_logprobs
from ramet.runtime.sampling.masks import apply_masks, pack, unpack
from ramet.runtime.sampling.penalties import (
    PenalisedRow,
    TokenCounts,
    apply_bias,
    apply_penalties,
    apply_penalties_reference,
    make_bias,
)
from ramet.runtime.sampling.sampler import (
    NOT_FINITE,
    NOTHING_ALLOWED,
    Drawn,
    DrawRow,
    SamplerState,
    draw_with_kernel,
    sample,
)
from ramet.runtime.types import GenerateSpec, Sampling

V = 70
GREEDY = Sampling(temperature=0)
TOKENS = st.lists(st.integers(0, V - 1), max_size=30)


def state(
    spec: GenerateSpec | None = None,
    *,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    ends: tuple[int, ...] = (),
    **sampling: object,
) -> SamplerState:
    spec = spec or GenerateSpec(sampling=Sampling(**{"temperature": 0, **sampling}))  # type: ignore[arg-type]
    return SamplerState(spec, prompt=prompt, output=output, end_ids=ends, vocabulary_size=V, default_seed=1)


def logits(*rows: dict[int, float]) -> torch.Tensor:
    """Zeros but for these."""
    made = torch.zeros(len(rows), V)
    for row, values in enumerate(rows):
        for token, value in values.items():
            made[row, token] = value
    return made


@given(
    TOKENS,
    TOKENS,
    TOKENS,
    st.sampled_from([0.5, 1.0, 1.3]),
    st.sampled_from([-1.5, 0.0, 0.7]),
    st.sampled_from([-0.5, 0.0, 2.0]),
)
@settings(max_examples=60, deadline=None)
def test_penalties_equal_the_reference(
    prompt: list[int], output: list[int], ahead: list[int], repetition: float, frequency: float, presence: float
) -> None:
    sampling = Sampling(repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
    rows = torch.randn(2, V, generator=torch.Generator().manual_seed(0))
    expected = apply_penalties_reference(rows[1].tolist(), sampling, prompt, output + ahead)
    untouched = rows[0].clone()
    apply_penalties(rows, [PenalisedRow(1, sampling, *TokenCounts(prompt, output).seen(ahead))])
    assert torch.allclose(rows[1], torch.tensor(expected), atol=1e-6)
    assert torch.equal(rows[0], untouched)


@given(TOKENS, TOKENS, TOKENS)
def test_counts_grow_to_what_they_would_be_built_as(prompt: list[int], output: list[int], ahead: list[int]) -> None:
    grown = TokenCounts(prompt)
    for token in output:
        grown.append([token])
    peeked, peeked_counts = grown.seen(ahead)
    built, built_counts = TokenCounts(prompt, output + ahead).seen()
    assert dict(zip(peeked, peeked_counts, strict=True)) == dict(zip(built, built_counts, strict=True))
    assert sum(grown.seen()[1]) == len(output)


def test_bias_adds_and_bans_from_minus_one_hundred() -> None:
    rows = logits({}, {})
    bias = make_bias({3: 5.0, 4: -100, 5: -250.0, V + 7: 1.0}, V)
    assert bias is not None
    apply_bias(rows, [(1, bias)])
    assert rows[1, 3:6].tolist() == [5.0, -math.inf, -math.inf]
    assert not rows[0].any()
    assert make_bias({V: 1.0, 2: 0.0}, V) is None


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 32, 33, 70, 5000])
def test_masks_deny_exactly_what_is_not_packed(size: int, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(masks, "native_masks", lambda: None)
    allowed = np.random.default_rng(size).random(size) < 0.5
    words = pack(np.flatnonzero(allowed).tolist(), size)
    assert (unpack(words, size) == allowed).all()
    rows = torch.zeros(2, size)
    apply_masks(rows, [(0, words)])
    assert ((rows[0] == 0).numpy() == allowed).all()
    assert not rows[1].any()


def test_stages_come_in_their_order() -> None:
    """Bias lifts a token over the others, the mask denies it all the same, and logprobs are of what is left."""
    spec = GenerateSpec(logprobs=5, sampling=Sampling(temperature=0, logit_bias={7: 50.0, 3: 2.0}))
    drawn = sample(logits({7: 1.0, 3: 1.0}), [DrawRow(state(spec), 0, grammar=pack([3, 9], V))])[0]
    assert drawn.token == 3
    assert drawn.logprob is not None
    expected = 3 - math.log(math.exp(3) + 1)
    assert drawn.logprob.logprob == pytest.approx(expected)
    assert drawn.logprob.top == [(3, pytest.approx(expected)), (9, pytest.approx(expected - 3))]


def test_logprobs_are_of_before_temperature() -> None:
    spec = GenerateSpec(logprobs=0, sampling=Sampling(temperature=0.01, seed=1))
    drawn = sample(logits({5: 2.0}), [DrawRow(state(spec), 0)])[0]
    assert (drawn.token, drawn.logprob and drawn.logprob.top) == (5, [])
    assert drawn.logprob is not None
    assert drawn.logprob.logprob == pytest.approx(2 - math.log(math.exp(2) + V - 1))


def test_logprobs_equal_log_softmax() -> None:
    rows = torch.randn(3, V, generator=torch.Generator().manual_seed(0))
    found = token_logprobs(rows, [1, 2, 3], [0, 2, V + 5])
    expected = rows.log_softmax(-1)
    assert [logprob.logprob for logprob in found] == pytest.approx(expected[range(3), [1, 2, 3]].tolist(), abs=1e-5)
    assert [len(logprob.top) for logprob in found] == [0, 2, V]
    assert [token for token, _ in found[2].top] == expected[2].argsort(descending=True).tolist()


def test_allowed_ids_and_min_tokens_and_stop_ids_narrow_the_mask() -> None:
    ends = GenerateSpec(min_tokens=2, stop_token_ids=(8,), sampling=GREEDY)
    rows = [{1: 9.0, 8: 8.0, 2: 7.0}] * 3
    fresh, grown = state(ends, ends=(1,)), state(ends, ends=(1,), output=(5, 5))
    drawn = sample(logits(*rows), [DrawRow(fresh, 0), DrawRow(grown, 2), DrawRow(fresh, 2, ahead=[5, 5])])
    assert [row.token for row in drawn] == [2, 1, 1]
    assert sample(logits({1: 9.0}), [DrawRow(state(allowed_token_ids=(4, 6, V + 3)), 0)])[0].token == 4


def test_a_grammar_that_leaves_only_the_end_wins_over_min_tokens() -> None:
    row = DrawRow(state(GenerateSpec(min_tokens=5, sampling=GREEDY), ends=(1,)), 0, grammar=pack([1], V))
    assert sample(logits({2: 3.0}), [row])[0] == Drawn(1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(bad: float) -> None:
    drawn = sample(logits({3: 1.0}, {3: bad}, {4: 1.0}), [DrawRow(state(), 0)] * 3)
    assert [(row.token, row.problem) for row in drawn if row.problem is None] == [(3, None), (4, None)]
    assert drawn[1].problem == NOT_FINITE


def test_huge_but_finite_logits_are_no_failure() -> None:
    assert sample(torch.full((1, V), 3e38), [DrawRow(state(), 0)])[0].problem is None


def test_a_row_without_an_allowed_token_fails_alone() -> None:
    rows = [DrawRow(state(), 0, grammar=pack([], V)), DrawRow(state(allowed_token_ids=(V,)), 0), DrawRow(state(), 0)]
    drawn = sample(logits({3: 1.0}, {3: 1.0}, {3: 1.0}), rows)
    assert [row.problem for row in drawn] == [NOTHING_ALLOWED, NOTHING_ALLOWED, None]


def test_greedy_and_drawing_rows_share_a_batch() -> None:
    rows = [DrawRow(state(temperature=0), 0), DrawRow(state(temperature=1.0, seed=4), 0), DrawRow(state(top_k=1), 0)]
    made = torch.randn(3, V, generator=torch.Generator().manual_seed(2))
    together = [row.token for row in sample(made.clone(), rows)]
    assert together == [sample(made[i : i + 1].clone(), [rows[i]])[0].token for i in range(3)]
    assert (together[0], together[2]) == (int(made[0].argmax()), int(made[2].argmax()))


def test_a_continued_state_equals_one_that_was_rebuilt() -> None:
    """Preemption: the same draws follow, whether the output was drawn here or handed back."""
    spec = GenerateSpec(sampling=Sampling(seed=3, repetition_penalty=1.4, frequency_penalty=0.3), min_tokens=6)
    kept = state(spec, prompt=(1, 2), ends=(9,))
    output: list[int] = []
    for step in range(12):
        made = torch.randn(1, V, generator=torch.Generator().manual_seed(step)) * 2
        rebuilt = state(spec, prompt=(1, 2), output=tuple(output), ends=(9,))
        first, second = (sample(made.clone(), [DrawRow(each, 2 + step)])[0].token for each in (kept, rebuilt))
        assert first == second
        kept.append([first])
        output.append(first)


def test_masking_a_view_spares_the_padding() -> None:
    whole = torch.zeros(2, V + 6)
    assert [row.token for row in sample(whole[:, :V], [DrawRow(state(allowed_token_ids=(69,)), 0)] * 2)] == [69, 69]
    assert not whole[:, V:].any()


def test_nothing_to_draw_is_nothing() -> None:
    assert sample(torch.zeros(0, V), []) == []


def test_the_kernel_for_gpus_draws_the_same_tokens() -> None:
    """Its reference here, on the CPU; the kernel is held to its reference by tests of its own."""
    samplings: list[dict[str, object]] = [
        {}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.3, "top_p": 0.6}, {"top_k": 1},
        {"temperature": 1.0, "min_p": 0.2}, {"temperature": 2.0, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    ]  # fmt: skip
    rows = [DrawRow(state(seed=i, **sampling), 5 * i) for i, sampling in enumerate(samplings * 8)]
    made = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(1)) * 2
    made[:, ::3] = -math.inf
    assert draw_with_kernel(made, rows).tolist() == [
        drawn.token for drawn in sample(made.clone().clamp(min=-1e30), rows)
    ]
