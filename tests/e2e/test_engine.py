"""The whole engine on the real model, fp32: a branch says the same alone, in a crowd, forked, evicted and preempted."""

import asyncio

import pytest

from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.clock import SystemClock
from ramet.runtime.config import AdmissionConfig, CacheConfig, EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.execution.local import LocalExecutor
from ramet.runtime.local_client import LocalClient
from ramet.runtime.models.base import make_kv_pool
from ramet.runtime.scheduler.build import build_scheduler
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    Finished,
    GenerateSpec,
    ModelCard,
    ProgramSpec,
    Sampling,
    TextPiece,
)
from ramet.runtime.weights.load import LoadedModel

pytestmark = pytest.mark.slow

HEAD = "The following are short notes about the sea. "
SPECS = [
    GenerateSpec(max_tokens=6, sampling=Sampling(temperature=0)),
    GenerateSpec(max_tokens=6, sampling=Sampling(temperature=0.9, seed=3)),
]


def client_on(loaded: LoadedModel, *, num_pages: int, **admission: object) -> LocalClient:
    config = EngineConfig(admission=AdmissionConfig(**admission), cache=CacheConfig(page_size=8))
    scheduler = build_scheduler(num_pages, SystemClock(), config)
    kv = make_kv_pool(loaded.config, scheduler.cache.allocator.pool_pages, 8, loaded.dtype, "cpu")
    codec = loaded.tokenizer
    executor = LocalExecutor(
        loaded.model, kv, vocabulary_size=codec.vocabulary_size, end_ids=loaded.end_token_ids, seed=0
    )
    card = ModelCard(
        name="embedded",
        model_type=loaded.config.model_type,
        context_length=loaded.config.context_length,
        vocabulary_size=codec.vocabulary_size,
        end_token_ids=tuple(loaded.end_token_ids),
    )
    return LocalClient(Engine(scheduler, executor), codec, card, ChatTemplate(None))


async def turn(client: LocalClient, branch: BranchHandle, text: str, spec: GenerateSpec) -> tuple[str, Finished]:
    await client.extend(branch, [TextPiece(text)])
    events = [event async for event in client.generate(branch, spec)]
    end = events[-1]
    assert isinstance(end, Finished)
    return "".join(event.text for event in events if isinstance(event, Delta)), end


async def program(client: LocalClient, number: int) -> list[str]:
    """Two turns, a fork of two, and a turn on each."""
    spec = SPECS[number % 2]
    branch = await client.open(ProgramSpec())
    said = [(await turn(client, branch, f"{HEAD}Note {number}:", spec))[0]]
    said.append((await turn(client, branch, " And then", spec))[0])
    children = await client.fork(branch, 2)
    forked = [turn(client, child, f" ({index})", spec) for index, child in enumerate(children)]
    return [*said, *(text for text, _ in await asyncio.gather(*forked))]


@pytest.fixture(scope="module")
def undisturbed(embedded: LoadedModel) -> list[list[str]]:
    async def main() -> list[list[str]]:
        async with client_on(embedded, num_pages=400) as client:
            found = []
            for number in range(3):
                found.append(await program(client, number))
                await client.flush_cache()
            return found

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("num_pages", "admission"),
    [
        (400, {}),
        (14, {"high_water": 3.0}),  # preempts
        (14, {"max_step_tokens": 7, "max_running": 3}),  # evicts, in small chunks
    ],
    ids=["crowd", "preempted", "chunked"],
)
async def test_programs_say_in_a_crowd_what_they_say_alone(
    embedded: LoadedModel, undisturbed: list[list[str]], num_pages: int, admission: dict[str, object]
) -> None:
    async with client_on(embedded, num_pages=num_pages, **admission) as client:
        said = await asyncio.gather(*(program(client, number) for number in range(3)))
        statistics = await client.statistics()
        assert list(said) == undisturbed
        assert statistics.leased_pages == 0
        assert statistics.free_pages + statistics.evictable_pages == statistics.total_pages
        if admission.get("high_water"):
            assert statistics.preemptions_total > 0


async def test_a_warm_prompt_says_what_a_cold_one_said(embedded: LoadedModel) -> None:
    """Whatever the length modulo the page, and however little is left to compute."""
    async with client_on(embedded, num_pages=400) as client:
        for words in ("Tides", "Tides come and go twice", "Tides come and go twice a day, as the moon pulls the water"):
            cold, first = await turn(client, await client.open(ProgramSpec()), words, SPECS[0])
            warm, second = await turn(client, await client.open(ProgramSpec()), words, SPECS[0])
            assert warm == cold
            assert first.usage.cached_tokens < second.usage.cached_tokens == second.usage.prompt_tokens - 1


async def test_select_is_one_pass_and_its_numbers_are_the_model_s(embedded: LoadedModel) -> None:
    choices = ["blue", "red", "blue and red", "a colour"]
    async with client_on(embedded, num_pages=400) as client:
        branch = await client.open(ProgramSpec())
        await client.extend(branch, [TextPiece("The colour of the sky is ")])
        selection = await client.select(branch, choices, "token_length_normalized", append=False)
        for choice, scored in zip(choices, selection.logprobs, strict=True):
            other = await client.open(ProgramSpec())
            await client.extend(other, [TextPiece("The colour of the sky is " + choice)])
            start = len(await client.tokens(other)) - len(scored)
            spec = GenerateSpec(max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=start)
            end = [event async for event in client.generate(other, spec)][-1]
            assert [each.token for each in end.prompt_logprobs] == [each.token for each in scored]
            read = [each.logprob for each in end.prompt_logprobs]
            assert [each.logprob for each in scored] == pytest.approx(read, abs=1e-3)
