"""Steps give what step-by-step decoding of each sequence alone would give: in batches, chunks, trees, drafts, forks."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.constrained.spec import Choice
from ramet.runtime.errors import GrammarRefused, NotBuilt
from ramet.runtime.execution.local import LocalExecutor
from ramet.runtime.models.batch import KVPool
from ramet.runtime.types import GenerateSpec, PageCopy, PageMove, PlannedRow, Sampling, SequenceStart, StepPlan

MakeDesk = Callable[..., Any]
Logits = Callable[[Sequence[int]], Tensor]
GREEDY = GenerateSpec(sampling=Sampling(temperature=0))
SEEDED = GenerateSpec(sampling=Sampling(temperature=1.2, seed=7, top_p=0.9, frequency_penalty=0.5))
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def start(sequence_id: int, spec: GenerateSpec = GREEDY, output: Sequence[int] = ()) -> SequenceStart:
    return SequenceStart(sequence_id, spec, PROMPT, output)


def test_greedy_steps_follow_the_model_and_never_its_padding(make_desk: MakeDesk, expected_logits: Logits) -> None:
    tokens = list(PROMPT)
    for token in make_desk().generate(PROMPT, GREEDY, 8):
        assert token == int(expected_logits(tokens).argmax())
        tokens.append(token)


def test_pages_may_lie_anywhere_and_prompts_come_in_chunks(make_desk: MakeDesk) -> None:
    desk, pages = make_desk(), [9, 2, 33, 7]
    desk.run(PlannedRow(1, PROMPT[:5], 0, pages), starts=[start(1)])
    (row,) = desk.run(PlannedRow(1, PROMPT[5:], 5, pages, 1))
    assert list(row.tokens) == make_desk().generate(PROMPT, GREEDY, 1)


@pytest.mark.parametrize("spec", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_sequence_draws_the_same_alone_and_among_others(make_desk: MakeDesk, spec: GenerateSpec) -> None:
    alone = make_desk().generate(PROMPT, spec, 3)
    desk = make_desk()
    other = GenerateSpec(sampling=Sampling(temperature=2.0, seed=8))
    tokens, noise, first = list(PROMPT), [8, 8, 8], True
    for _ in range(3):
        rows = [
            PlannedRow(2, noise[-1:] if not first else noise, 0 if first else len(noise) - 1, [50, 51], 1),
            PlannedRow(1, tokens[-1:] if not first else tokens, 0 if first else len(tokens) - 1, range(20), 1),
        ]
        starts = [start(1, spec), SequenceStart(2, other, noise, ())] if first else []
        first = False
        for row in desk.run(*rows, starts=starts):
            (tokens if row.sequence_id == 1 else noise).extend(row.tokens)
    assert tokens[len(PROMPT) :] == alone


def test_a_preempted_sequence_continues_as_if_nothing_had_been(make_desk: MakeDesk) -> None:
    undisturbed = make_desk().generate(PROMPT, SEEDED, 6)
    desk = make_desk()
    output = desk.generate(PROMPT, SEEDED, 3)
    (row,) = desk.run(PlannedRow(1, PROMPT + output, 0, [40, 41, 42], 1), starts=[start(1, SEEDED, output)], ends=[1])
    assert [*output, *row.tokens] == undisturbed[:4]


def test_an_unseeded_sequence_keeps_its_seed_over_a_preemption_and_shares_it_with_nobody(make_desk: MakeDesk) -> None:
    spec, row = GenerateSpec(sampling=Sampling(temperature=5.0)), lambda i: PlannedRow(i, PROMPT, 0, [0, 1, 2], 1)
    desk = make_desk()
    first, second = ([desk.run(row(i), starts=[start(i, spec)])[0].tokens[0] for i in range(20)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 5


def test_a_fork_copies_the_head_of_a_page(make_desk: MakeDesk) -> None:
    """Nine tokens fill two pages of four and one slot of the third: the child gets a copy of that slot alone."""
    desk = make_desk()
    desk.run(PlannedRow(1, [*PROMPT, 7], 0, [0, 1, 2], 1), starts=[start(1)])
    rows = desk.run(PlannedRow(2, [8], 9, [0, 1, 5], 1), starts=[start(2)], copies=[PageCopy(2, 5, 1)])
    assert list(rows[0].tokens) == make_desk().generate([*PROMPT, 8], GREEDY, 1)
    assert desk.kv.keys[0][5].flatten().tolist() == [5.0, 8.0, -7.0, -7.0]
    assert desk.kv.keys[0][2].flatten().tolist() == [5.0, 7.0, -7.0, -7.0]


@pytest.mark.parametrize("spec", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_drafts_stand_while_they_are_what_would_be_drawn(
    make_desk: MakeDesk, spec: GenerateSpec, num_right: int
) -> None:
    truth = make_desk().generate(PROMPT, spec, 6)
    drafts = [*truth[:num_right], *((token + 1) % 60 for token in truth[num_right:3])]
    desk = make_desk()
    (row,) = desk.run(PlannedRow(1, PROMPT + drafts, 0, range(10), 1 + len(drafts)), starts=[start(1, spec)])
    assert list(row.tokens) == truth[: num_right + 1]
    known = PROMPT + list(row.tokens)
    (row,) = desk.run(PlannedRow(1, known[-1:], len(known) - 1, range(10), 1))  # the state went on by as many
    assert list(row.tokens) == truth[num_right + 1 : num_right + 2]


def test_logprobs_of_outputs_are_one_per_token_with_drafts_too(make_desk: MakeDesk, expected_logits: Logits) -> None:
    spec = GenerateSpec(logprobs=2, sampling=Sampling(temperature=0))
    truth = make_desk().generate(PROMPT, spec, 2)
    (row,) = make_desk().run(PlannedRow(1, [*PROMPT, truth[0]], 0, range(9), 2), starts=[start(1, spec)])
    assert list(row.tokens) == truth
    for i, logprob in enumerate(row.logprobs):
        expected = expected_logits(PROMPT + truth[:i]).log_softmax(-1)
        assert logprob.logprob == pytest.approx(float(expected[truth[i]]), abs=1e-5)
        assert [token for token, _ in logprob.top] == expected.topk(2).indices.tolist()


def test_follower_logprobs_are_of_the_models_own_logits(make_desk: MakeDesk, expected_logits: Logits) -> None:
    """Also while the same row samples, under a mask and a penalty that must not show in them."""
    sampling = Sampling(temperature=0, allowed_token_ids=(2,), presence_penalty=1.0)
    spec = GenerateSpec(prompt_logprobs=1, sampling=sampling)
    row = PlannedRow(1, PROMPT, 0, range(9), 1, num_logprobs=3, followers=[6, 5, 11])
    (sampled,) = make_desk().run(row, starts=[start(1, spec)])
    assert list(sampled.tokens) == [2]
    for i, logprob in enumerate(sampled.follower_logprobs):
        expected = expected_logits(PROMPT[: 7 + i]).log_softmax(-1)
        assert logprob.token == row.followers[i]
        assert logprob.logprob == pytest.approx(float(expected[row.followers[i]]), abs=1e-5)
        assert logprob.top == [(int(expected.argmax()), pytest.approx(float(expected.max()), abs=1e-5))]


def test_a_tree_of_choices_is_scored_branch_by_branch(make_desk: MakeDesk, expected_logits: Logits) -> None:
    """Choices "1 2", "1 3 4" and "5" after the prompt: the last prompt token and node "1" have two followers each."""
    desk = make_desk()
    desk.run(PlannedRow(1, PROMPT[:-1], 0, range(9)), starts=[start(1)])
    row = PlannedRow(
        9, [PROMPT[-1], 1, 3], 8, range(9), 0, 5,
        followers=[1, 5, 2, 3, 4], parents=[-1, 0, 1], follower_at=[0, 0, 1, 1, 2],
    )  # fmt: skip
    wider = PlannedRow(
        8, [PROMPT[-1], 1, 5, 3], 8, [0, 1, 20], 0, 3, followers=[0, 4, 2], parents=[-1, 0, 0, 1], follower_at=[2, 3, 1]
    )  # fmt: skip
    first, second = desk.run(row, wider)
    paths = [PROMPT, PROMPT, [*PROMPT, 1], [*PROMPT, 1], [*PROMPT, 1, 3]]
    expected = [
        float(expected_logits(path).log_softmax(-1)[token]) for path, token in zip(paths, row.followers, strict=True)
    ]
    assert [each.logprob for each in first.follower_logprobs] == pytest.approx(expected, abs=1e-5)
    paths = [[*PROMPT, 5], [*PROMPT, 1, 3], [*PROMPT, 1]]
    expected = [
        float(expected_logits(path).log_softmax(-1)[token]) for path, token in zip(paths, wider.followers, strict=True)
    ]
    assert [each.logprob for each in second.follower_logprobs] == pytest.approx(expected, abs=1e-5)


class Cycle:
    """A grammar of one legal token a place: 10, 11, 12, and then only the end (0)."""

    def __init__(self, place: int = 0) -> None:
        self.place = place

    def initial(self) -> "Cycle":
        return self

    @property
    def done(self) -> bool:
        return self.place >= 3

    @property
    def is_dead(self) -> bool:
        return self.place < 0

    accepting = ended = False
    num_bytes = 0

    def events(self) -> list[tuple[str, str, int]]:
        return []

    def advance(self, token: int) -> "Cycle":
        if self.done and token == 0:
            return Cycle(4)
        return Cycle(self.place + 1 if token == 10 + self.place else -1)

    def mask(self, out: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        token = 0 if self.done else 10 + self.place
        out[token // 32] |= np.int32(1 << (token % 32))

    def forced(self) -> list[int]:
        return [10 + place for place in range(self.place, 3)]


WITH_GRAMMAR = GenerateSpec(grammar=Choice(choices=("x",)), sampling=Sampling(temperature=1.0))


def test_a_grammar_masks_advances_and_proposes_what_it_forces(make_desk: MakeDesk) -> None:
    desk = make_desk(compile_grammar=lambda spec: Cycle())
    (row,) = desk.run(PlannedRow(1, PROMPT, 0, range(9), 1), starts=[start(1, WITH_GRAMMAR)])
    assert (list(row.tokens), list(row.forced), row.grammar_done) == ([10], [11, 12], False)
    (row,) = desk.run(PlannedRow(1, [10, *row.forced], 9, range(9), 3))
    assert (list(row.tokens), list(row.forced), row.grammar_done) == ([11, 12, 0], [], True)


def test_a_draft_that_the_grammar_denies_is_replaced(make_desk: MakeDesk) -> None:
    desk = make_desk(compile_grammar=lambda spec: Cycle())
    (row,) = desk.run(PlannedRow(1, [*PROMPT, 10, 40, 12], 0, range(9), 4), starts=[start(1, WITH_GRAMMAR)])
    assert list(row.tokens) == [10, 11]


def test_a_grammar_is_rebuilt_from_the_output(make_desk: MakeDesk) -> None:
    desk = make_desk(compile_grammar=lambda spec: Cycle())
    (row,) = desk.run(PlannedRow(1, [*PROMPT, 10], 0, range(9), 1), starts=[start(1, WITH_GRAMMAR, [10])])
    assert list(row.tokens) == [11]


def test_output_that_does_not_fit_the_grammar_fails_its_row(make_desk: MakeDesk) -> None:
    desk = make_desk(compile_grammar=lambda spec: Cycle())
    (row,) = desk.run(PlannedRow(1, [*PROMPT, 40], 0, range(9), 1), starts=[start(1, WITH_GRAMMAR, [40])])
    assert row.error is not None
    assert "grammar" in row.error.message


def test_forced_tokens_are_not_proposed_where_not_wanted(make_desk: MakeDesk) -> None:
    spec = GenerateSpec(grammar=Choice(choices=("x",)), grammar_drafts=False)
    (row,) = make_desk(compile_grammar=lambda spec: Cycle()).run(
        PlannedRow(1, PROMPT, 0, range(9), 1), starts=[start(1, spec)]
    )
    assert list(row.forced) == []


def refuse(spec: object) -> Cycle:
    raise GrammarRefused(expected="a grammar", got=spec, at="$.grammar")


def test_failures_are_values_of_their_own_row(make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = make_desk(compile_grammar=refuse)
    forward = desk.executor._model.forward

    def poisoned(*args: Any) -> Tensor:
        logits: Tensor = forward(*args)
        logits[1] = math.nan
        return logits

    monkeypatch.setattr(desk.executor._model, "forward", poisoned)
    banned = GenerateSpec(sampling=Sampling(allowed_token_ids=(999,)))
    rows = desk.run(
        *(PlannedRow(i, PROMPT, 0, range(i * 4, i * 4 + 4), 1) for i in range(4)),
        starts=[start(0), start(1), start(2, WITH_GRAMMAR), start(3, banned)],
    )
    assert list(rows[0].tokens) == make_desk().generate(PROMPT, GREEDY, 1)
    assert [row.error and (row.error.status, row.error.code) for row in rows] == [
        None, (500, "engine_failed"), (400, "grammar_refused"), (500, "engine_failed"),
    ]  # fmt: skip
    assert [list(row.tokens) for row in rows[1:]] == [[], [], []]


def test_states_are_dropped_at_the_end_and_plans_without_rows_are_fine(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.run(starts=[start(1), start(2)])
    assert desk.executor.num_sequences == 2
    desk.run(ends=[1, 77])
    assert desk.executor.num_sequences == 1
    with pytest.raises(NotBuilt, match="--kv-disk"):
        desk.run(moves=[PageMove(0, 0, "to_disk", b"key")])


def test_inputs_are_not_changed(make_desk: MakeDesk) -> None:
    pages, tokens = [0, 1, 2, 60, 61], list(PROMPT)
    make_desk().run(PlannedRow(1, tokens, 0, pages, 1), starts=[start(1)])
    assert (pages, tokens) == ([0, 1, 2, 60, 61], PROMPT)
    assert torch.is_inference_mode_enabled() is False


def test_all_copies_read_before_any_writes_and_take_scales_along() -> None:
    """Page 1 gives its head to page 2 and is, in the same step, the target of page 0."""
    pages = [torch.arange(12).view(3, 4, 1, 1).to(torch.int8) for _ in range(2)]
    scales = [torch.arange(12.0).view(3, 4, 1) for _ in range(2)]
    kv = KVPool(keys=pages[:1], values=pages[1:], key_scales=scales[:1], value_scales=scales[1:])
    executor = LocalExecutor(NoModel(), kv, vocabulary_size=1)  # type: ignore[arg-type]
    executor.execute(StepPlan([], copies=[PageCopy(0, 1, 4), PageCopy(1, 2, 3)]))
    for tensor in (*pages, *scales):
        assert tensor.flatten().tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 11]


class NoModel:
    """Runs no rows."""


def test_draft_trees_are_refused_for_their_own_row(make_desk: MakeDesk) -> None:
    tree = PlannedRow(1, [*PROMPT, 1, 2], 0, range(9), 3, parents=[-1, *range(8), 8, 8])
    line = PlannedRow(2, PROMPT, 0, range(9, 18), 1)
    refused, drawn = make_desk().run(tree, line, starts=[start(1), start(2)])
    assert refused.error is not None and refused.error.code == "not_implemented"
    assert list(drawn.tokens) == make_desk().generate(PROMPT, GREEDY, 1)
