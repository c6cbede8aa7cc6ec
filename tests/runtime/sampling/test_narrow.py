"""Rows drawn from their few allowed tokens draw what they would draw from the whole vocabulary under the mask."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.sampling import narrow, sampler
from ramet.runtime.sampling.masks import Words, pack, pack_all_but, unpack
from ramet.runtime.sampling.narrow import few_tokens, gather
from ramet.runtime.sampling.sampler import NOTHING_ALLOWED, DrawRow, SamplerState, sample
from ramet.runtime.types import GenerateSpec, Sampling

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0),
    Sampling(top_k=3),
    Sampling(top_p=0.8),
    Sampling(min_p=0.1),
    Sampling(top_k=40, top_p=0.9, min_p=0.02, temperature=1.7),
    Sampling(top_k=5_000, top_p=0.5),
]


def rows(V: int, masks: list[list[int]], samplings: list[Sampling], **spec: object) -> list[DrawRow]:
    specs = [GenerateSpec(sampling=sampling, **spec) for sampling in samplings]  # type: ignore[arg-type]
    states = [
        SamplerState(spec, prompt=(), output=(), end_ids=(0,), vocabulary_size=V, default_seed=7 + i)
        for i, spec in enumerate(specs)
    ]
    return [DrawRow(state, 11 + i, grammar=pack(masks[i], V)) for i, state in enumerate(states)]


@pytest.mark.parametrize("native", [True, False], ids=["native", "numpy"])
@pytest.mark.parametrize("V", [1, 31, 32, 33, 1000])
def test_finds_the_tokens_of_a_mask(V: int, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(narrow, "native_masks", lambda: None)
    chosen = np.flatnonzero(np.random.default_rng(V).random(V) < 0.3).tolist()
    assert found(pack(chosen, V)) == chosen
    assert found(pack_all_but(chosen, V)) == sorted(set(range(V)) - set(chosen))
    monkeypatch.setattr(narrow, "MAX_TOKENS", len(chosen))
    assert found(pack(chosen, V)) == chosen
    monkeypatch.setattr(narrow, "MAX_TOKENS", max(0, len(chosen) - 1))
    assert found(pack(chosen, V)) == (None if chosen else [])


def found(words: Words) -> list[int] | None:
    tokens = few_tokens(words)
    return None if tokens is None else tokens.tolist()


def test_gathers_side_by_side() -> None:
    logits = torch.arange(200, dtype=torch.float32).view(2, 100)
    gathered = gather(logits, [(1, np.array([3, 99])), (0, np.array([50]))])
    assert gathered.rows == [1, 0]
    assert gathered.tokens.tolist() == [[3, 99], [50, 0]]
    assert gathered.logits.tolist() == [[103.0, 199.0], [50.0, -math.inf]]


@given(st.integers(0, 10_000), st.sampled_from([40, 333, 3000]), st.lists(st.sampled_from(SAMPLINGS), max_size=6))
@settings(max_examples=80, deadline=None)
def test_draws_what_the_masked_row_draws(seed: int, V: int, samplings: list[Sampling]) -> None:
    random = np.random.default_rng(seed)
    masks = [np.flatnonzero(random.random(V) < share).tolist() for share in random.random(len(samplings)) ** 4]
    logits = torch.from_numpy(random.standard_normal((len(samplings), V)).astype(np.float32) * 3)
    few = sample(logits.clone(), rows(V, masks, samplings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "few_tokens", lambda words: None)
        wide = sample(logits.clone(), rows(V, masks, samplings))
    assert few == wide
    for drawn, mask in zip(few, masks, strict=True):
        assert drawn.token in mask if mask else drawn.problem == NOTHING_ALLOWED


def test_narrow_and_wide_rows_of_one_step_do_not_meet() -> None:
    V = 9000
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(1))
    masks = [[5, 6, 7], list(range(1, V)), [8_999], list(range(10, 8_000))]
    together = sample(logits.clone(), rows(V, masks, [Sampling()] * 4))
    assert [drawn.token for drawn in together] == [
        sample(logits[i : i + 1].clone(), [row])[0].token for i, row in enumerate(rows(V, masks, [Sampling()] * 4))
    ]


def test_logprobs_and_biases_see_the_whole_row() -> None:
    asked = rows(50, [[3, 4]], [Sampling(temperature=0)], logprobs=1)
    assert sample(torch.zeros(1, 50), asked)[0].logprob.logprob == pytest.approx(math.log(0.5))  # type: ignore[union-attr]
    closed = rows(50, [[3]], [Sampling(logit_bias={3: -100})])
    assert sample(torch.zeros(1, 50), closed)[0].problem == NOTHING_ALLOWED


def test_masks_have_no_bit_past_the_vocabulary() -> None:
    words = pack_all_but([2], 33)
    assert int(np.bitwise_count(words.view(np.uint32)).sum()) == 32
    assert not unpack(words, 33)[2]


def test_where_one_token_is_allowed_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of the step draw as ever, and penalties and noise have no say."""
    V = 5_000
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(2))
    made = rows(V, [[17], list(range(V)), [4_999]], [Sampling(temperature=3.0), Sampling(), Sampling(temperature=0)])
    expected = sample(logits.clone(), made)[1].token
    drawn: list[int] = []
    draw = sampler._draw

    def counting(some: torch.Tensor, *args: object) -> torch.Tensor:
        drawn.append(len(some))
        return draw(some, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(sampler, "_draw", counting)
    assert [each.token for each in sample(logits.clone(), made)] == [17, expected, 4_999]
    assert drawn == [1]
