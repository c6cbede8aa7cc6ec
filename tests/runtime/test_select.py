"""select: one pass over the choices' trie, real probabilities, the same winner whatever the order."""

import asyncio
import itertools
import math

import numpy as np
import pytest

from ramet.radix.key import as_tokens
from ramet.runtime.errors import BadRequest
from ramet.runtime.types import GenerateSpec, Message, MessagesPiece, ProgramSpec, Sampling, TextPiece
from ramet.scripted.sampling import log_softmax
from ramet.testing import ByteTokenizer, Prefix, RecordingExecutor, ScriptedModel, scripted_client

CODEC = ByteTokenizer()
MODEL = ScriptedModel.seeded(7)
CHOICES = ["yes", "no", "nope", "maybe so", ""]


def logprob_of(text: str, choice: str, *, end: bool) -> float:
    """By the definition: one model call per token."""
    tokens = CODEC.encode(text)
    total = 0.0
    for token in [*CODEC.encode(choice), *([CODEC.end_ids[0]] if end else [])]:
        total += log_softmax(MODEL.logits(Prefix(as_tokens(tokens), len(tokens), 0)))[token]
        tokens.append(token)
    return total


async def opened(client, text: str):
    branch = await client.open(ProgramSpec())
    await client.extend(branch, [TextPiece(text)])
    return branch


async def test_total_is_the_probability_of_each_option_with_its_end() -> None:
    async with scripted_client(MODEL, page_size=4) as client:
        branch = await opened(client, "is it? ")
        selection = await client.select(branch, CHOICES, append=False)
        expected = [logprob_of("is it? ", choice, end=True) for choice in CHOICES]
        assert selection.scores == pytest.approx(expected)
        assert math.fsum(selection.probabilities) == pytest.approx(1)
        assert selection.index == int(np.argmax(expected))
        assert [len(each) for each in selection.logprobs] == [len(choice) + 1 for choice in CHOICES]
        assert await client.text(branch) == "is it? "


async def test_other_methods_rank_as_they_say() -> None:
    choices = CHOICES[:-1]
    async with scripted_client(MODEL) as client:
        branch = await opened(client, "is it? ")
        mean = await client.select(branch, choices, "token_length_normalized", append=False)
        expected = [logprob_of("is it? ", choice, end=False) / len(choice) for choice in choices]
        assert mean.scores == pytest.approx(expected)
        apart = await client.select(branch, choices, "unconditional_likelihood_normalized", append=False)
        assert len(set(apart.scores)) == len(choices) and math.fsum(apart.probabilities) == pytest.approx(1)
        greedy = await client.select(branch, choices, "greedy_token_selection", append=False)
        firsts = {choice: logprob_of("is it? ", choice[0], end=False) for choice in choices}
        assert firsts[choices[greedy.index]] == max(firsts.values())


@pytest.mark.parametrize("method", ["total", "token_length_normalized", "greedy_token_selection"])
async def test_shuffling_the_choices_never_changes_the_winner(method) -> None:
    async with scripted_client(MODEL) as client:
        branch = await opened(client, "well: ")
        winners = set()
        for order in itertools.permutations(CHOICES[:4]):
            selection = await client.select(branch, order, method, append=False)
            winners.add(order[selection.index])
            drawn = await client.select(branch, order, method, temperature=1.0, seed=5, append=False)
            winners.add(("drawn", order[drawn.index]))
        assert len(winners) == 2


async def test_shared_prefixes_are_computed_once_and_the_winner_goes_on_the_branch() -> None:
    recorders: list[RecordingExecutor] = []

    def wrap(executor):
        recorders.append(RecordingExecutor(executor))
        return recorders[0]

    async with scripted_client({"say": "abcde2"}, wrap=wrap) as client:
        branch = await opened(client, "say ")
        selection = await client.select(branch, [f"abcde{digit}" for digit in range(10)])
        assert selection.index == 2 and selection.probabilities[2] > 0.99
        # 3 tokens of text; then the root, abcde once, and ten digits for their ends
        assert recorders[0].num_computed == 3 + 1 + 5 + 10
        assert await client.text(branch) == "say abcde2"
        end = [event async for event in client.generate(branch, GenerateSpec(max_tokens=1))][-1]
        assert end.usage.cached_tokens == 3


async def test_many_choices_are_scored_in_several_rows_with_the_same_numbers() -> None:
    choices = [f"{number:03d} is the number" for number in range(60)]
    async with scripted_client(MODEL) as wide, scripted_client(MODEL, max_step_tokens=256) as narrow:
        found = [await client.select(await opened(client, "n: "), choices) for client in (wide, narrow)]
        assert found[0].scores == found[1].scores and found[0].index == found[1].index


async def test_bad_choices_are_refused_by_name() -> None:
    async with scripted_client(MODEL) as client:
        branch = await opened(client, "x")
        for choices in ([], ["a", "a"], "ab", ["a", 3]):
            with pytest.raises(BadRequest, match=r"\$\.choices"):
                await client.select(branch, choices)
        with pytest.raises(BadRequest, match=r"\$\.choices"):
            await client.select(branch, ["", "a"], "token_length_normalized")
        assert (await client.select(branch, ["only"])).probabilities == [1.0]


async def test_selecting_in_an_open_turn_becomes_its_words() -> None:
    async with scripted_client({"yes or no": "no"}) as client:
        branch = await client.open(ProgramSpec())
        ask = MessagesPiece(messages=[Message(role="user", content="yes or no")], add_generation_prompt=True)
        await client.extend(branch, [ask])
        assert (await client.select(branch, ["yes", "no"])).index == 1
        await client.extend(branch, [MessagesPiece(messages=[Message(role="user", content="why")])])
        text = await client.text(branch)
        assert text == (
            "<|im_start|>user\nyes or no<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n"
            "<|im_start|>user\nwhy<|im_end|>\n"
        )


async def test_side_by_side_with_generations() -> None:
    async with scripted_client(MODEL, num_pages=40, page_size=4) as client:
        branches = [await opened(client, f"text number {number} ") for number in range(8)]
        spec = GenerateSpec(max_tokens=12, sampling=Sampling(temperature=0))

        async def drain(branch):
            return [event async for event in client.generate(branch, spec)]

        await asyncio.gather(*(drain(b) if n % 2 else client.select(b, CHOICES) for n, b in enumerate(branches)))
        statistics = await client.statistics()
        assert statistics.leased_pages == 0
        assert statistics.free_pages + statistics.evictable_pages == statistics.total_pages
