"""The real model, fp32: neither batches, nor chunks, nor drafts, nor cached prefixes change what it says."""

from typing import Any

import pytest

from ramet.runtime.types import GenerateSpec, PlannedRow, Sampling, SequenceStart

GREEDY = GenerateSpec(sampling=Sampling(temperature=0))
QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue? Answer in one sentence.",
    "Write a haiku about rivers.",
    "2 + 2 =",
    "Translate to German: good morning.",
]


def seeded(seed: int) -> GenerateSpec:
    return GenerateSpec(sampling=Sampling(temperature=0.9, top_p=0.95, seed=seed))


def prompt(desk: Any, question: str) -> list[int]:
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    tokens: list[int] = desk.tokenizer.encode(text, allow_special=True)
    return tokens


def test_a_greedy_answer_is_right(desk: Any) -> None:
    (answer,) = desk.generate([prompt(desk, QUESTIONS[0])], [GREEDY], 10)
    assert "Paris" in desk.tokenizer.decode(answer)


def test_each_says_in_a_batch_what_it_says_alone(desk: Any) -> None:
    """Row 34 of the known bugs of other systems: temperature 0 must not change with load. Seeded draws neither."""
    prompts = [prompt(desk, question) for question in QUESTIONS]
    specs = [GREEDY if i % 2 == 0 else seeded(i) for i in range(len(prompts))]
    together = desk.generate(prompts, specs, 12)
    alone = [desk.generate([own], [spec], 12)[0] for own, spec in zip(prompts, specs, strict=True)]
    assert together == alone


def test_seeds_tell_sequences_apart(desk: Any) -> None:
    own = prompt(desk, QUESTIONS[3])
    first, same, other = desk.generate([own] * 3, [seeded(1), seeded(1), seeded(2)], 12)
    assert first == same != other


@pytest.mark.parametrize("spec", [GREEDY, seeded(5)], ids=["greedy", "seeded"])
def test_drafts_and_preemption_change_nothing(desk: Any, spec: GenerateSpec) -> None:
    own = prompt(desk, QUESTIONS[2])
    (truth,) = desk.generate([own], [spec], 8)
    pages = desk.pages(len(own) + 10)
    drafts = [*truth[:3], (truth[3] + 1) % 1000]
    (row,) = desk.step(PlannedRow(7, own + drafts, 0, pages, 5), starts=[SequenceStart(7, spec, own, ())])
    assert list(row.tokens) == truth[:4]
    again = own + truth[:4]  # preempted: computed anew from other pages
    (row,) = desk.step(
        PlannedRow(7, again, 0, desk.pages(len(again)), 1), starts=[SequenceStart(7, spec, own, truth[:4])], ends=[7]
    )
    assert list(row.tokens) == truth[4:5]


@pytest.mark.parametrize("start", [1, 5, 16, 17, 30])
def test_prompt_logprobs_are_the_same_cold_and_warm(desk: Any, start: int) -> None:
    """Row 33: the first logprob after a cached part is neither missing nor shifted, wherever the part ends."""
    own = prompt(desk, QUESTIONS[2])
    spec = GenerateSpec(prompt_logprobs=2, sampling=Sampling(temperature=0))
    pages = desk.pages(len(own))
    whole = PlannedRow(1, own[:-1], 0, pages, 0, len(own) - 1, followers=own[1:])
    (cold,) = desk.step(whole, starts=[SequenceStart(1, spec, own, ())])
    rest = PlannedRow(1, own[start:-1], start, pages, 0, len(own) - 1 - start, followers=own[start + 1 :])
    (warm,) = desk.step(rest)
    assert [each.token for each in warm.follower_logprobs] == own[start + 1 :]
    for first, second in zip(cold.follower_logprobs[start:], warm.follower_logprobs, strict=True):
        assert first.logprob == pytest.approx(second.logprob, abs=1e-4)
        assert [token for token, _ in first.top] == [token for token, _ in second.top]


def test_a_prompt_in_chunks_gives_the_same_token(desk: Any) -> None:
    own = prompt(desk, QUESTIONS[2])
    (truth,) = desk.generate([own], [GREEDY], 1)
    pages = desk.pages(len(own))
    desk.step(PlannedRow(3, own[:7], 0, pages), starts=[SequenceStart(3, GREEDY, own, ())])
    desk.step(PlannedRow(3, own[7:18], 7, pages))
    (row,) = desk.step(PlannedRow(3, own[18:], 18, pages, 1))
    assert list(row.tokens) == truth
