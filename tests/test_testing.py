"""The test doubles are products: they do what their words say."""

import doctest

import numpy as np
import pytest

import ramet.scripted.tokenizer
import ramet.testing
from ramet.radix.key import as_tokens
from ramet.runtime.types import (
    Delta,
    GenerateSpec,
    PageCopy,
    PlannedRow,
    ProgramSpec,
    Sampling,
    SequenceStart,
    StepPlan,
    TextPiece,
)
from ramet.testing import (
    ByteTokenizer,
    ManualClock,
    Prefix,
    RecordingExecutor,
    ScriptedExecutor,
    ScriptedModel,
    scripted_client,
)


@pytest.mark.parametrize("module", [ramet.testing, ramet.scripted.tokenizer])
def test_docstrings_run(module) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


async def said(client, text: str, **sampling: object) -> str:
    branch = await client.open(ProgramSpec())
    await client.extend(branch, [TextPiece(text)])
    spec = GenerateSpec(max_tokens=60, sampling=Sampling(**{"temperature": 0, **sampling}))
    return "".join([event.text async for event in client.generate(branch, spec) if isinstance(event, Delta)])


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ("always this", ["always this", "always this"]),
        (["first", "second"], ["first", "second"]),
        ({"two": "2", "one": "1", "one two": "3"}, ["1", "3"]),
        (lambda prompt: prompt.upper(), ["ONE", "ONE TWO"]),
    ],
)
async def test_replies_come_in_every_form(replies, expected: list[str]) -> None:
    async with scripted_client(replies) as client:
        assert [await said(client, "one"), await said(client, "one two")] == expected


async def test_a_seeded_model_differs_by_seed_and_by_prefix_alone() -> None:
    texts = []
    for seed in (0, 0, 1):
        async with scripted_client(ScriptedModel.seeded(seed)) as client:
            texts.append((await said(client, "a"), await said(client, "b")))
    assert texts[0] == texts[1] != texts[2] and texts[0][0] != texts[0][1]


async def test_given_logits_are_obeyed() -> None:
    def logits(prefix: Prefix):
        return np.eye(259, dtype=np.float32)[ord("a") + len(prefix.tokens) % 3] * 9

    async with scripted_client(ScriptedModel(logits)) as client:
        assert (await said(client, "xyz"))[:6] == "abcabc"
        assert set(await said(client, "x", allowed_token_ids=(ord("c"), ord("d")))) <= set("cd")
        assert "a" not in await said(client, "x", logit_bias={ord("a"): -100.0})


@pytest.mark.parametrize("sampling", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-9}])
async def test_narrow_sampling_is_greedy(sampling: dict[str, float]) -> None:
    async with scripted_client() as client:
        greedy = await said(client, "go ")
        assert await said(client, "go ", **{"temperature": 1.0, **sampling}) == greedy


async def test_penalties_discourage_repetition() -> None:
    def logits(prefix: Prefix):
        found = np.zeros(259, np.float32)
        found[[ord("a"), ord("b")]] = 2.0, 1.5
        return found

    async with scripted_client(ScriptedModel(logits)) as client:
        assert set(await said(client, "x")) == {"a"}
        for penalty in ({"frequency_penalty": 1.0}, {"presence_penalty": 1.0}, {"repetition_penalty": 2.0}):
            assert "b" in await said(client, "x", **penalty)


def test_any_text_survives_the_byte_tokenizer() -> None:
    codec = ByteTokenizer()
    for text in ("", "plain", "ünï 漢字 👩‍👩‍👧", "<|im_end|>", "a<|im_start|>b<|im_end|>"):
        assert codec.decode(codec.encode(text), skip_special=False) == text
        assert codec.decode(codec.encode(text, allow_special=True), skip_special=False) == text
    assert codec.encode("x", add_bos=True) == [256, 120]
    assert codec.decode([72, 0x82, 73]) == "H\ufffdI"


def test_the_clock_goes_where_it_is_told() -> None:
    clock = ManualClock(5.0)
    clock.advance(1.5)
    assert clock.now() == 6.5
    with pytest.raises(ValueError, match="seconds"):
        clock.advance(-1)


def start(number: int, tokens: list[int]) -> SequenceStart:
    return SequenceStart(number, GenerateSpec(sampling=Sampling(temperature=0)), tokens, ())


def test_the_scripted_memory_refuses_what_a_device_would_read_in_silence() -> None:
    model = ScriptedModel.seeded()
    executor = RecordingExecutor(ScriptedExecutor(model, num_pages=8, page_size=4))
    tokens = [*b"abcdef"]
    whole = executor.execute(StepPlan([PlannedRow(1, tokens, 0, [1, 2], 1)], [start(1, tokens)]))
    expected = int(model.logits(Prefix(as_tokens(tokens), 6, 0)).argmax())
    assert whole.rows[0].tokens == [expected] and executor.num_computed == 6
    copied = StepPlan([PlannedRow(2, tokens[5:], 5, [1, 3], 1)], [start(2, tokens)], (), [PageCopy(2, 3, 1)])
    assert executor.execute(copied).rows[0].tokens == [expected]
    for pages in ([1, 5], [2, 1]):  # never computed; computed for another place
        with pytest.raises(AssertionError, match="not computed"):
            executor.execute(StepPlan([PlannedRow(3, tokens[5:], 5, pages, 1)], [start(3, tokens)]))
    with pytest.raises(AssertionError, match="before it is computed"):
        executor.execute(StepPlan([], (), (), [PageCopy(6, 7, 2)]))
