"""An engine in this process, end to end on a scripted model."""

import asyncio
from collections.abc import Sequence

import pytest

from ramet.runtime.errors import BadRequest, EngineFailed, NotFound
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
)
from ramet.testing import scripted_client

GREEDY = Sampling(temperature=0)


async def run(client, branch: BranchHandle, **spec: object) -> list[Event]:
    return [event async for event in client.generate(branch, GenerateSpec(sampling=GREEDY, **spec))]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


async def test_a_turn_streams_its_text_and_leaves_it_on_the_branch() -> None:
    async with scripted_client({"capital of France": "Paris"}) as client:
        branch = await client.open(ProgramSpec())
        await client.extend(branch, [TextPiece("The capital of France is ")])
        events = await run(client, branch)
        assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
        assert text_of(events) == "Paris" and events[-1].reason == "stop"
        assert await client.text(branch) == "The capital of France is Paris"


async def test_forks_share_what_their_parent_computed() -> None:
    async with scripted_client(page_size=4) as client:
        parent = await client.open(ProgramSpec())
        await client.extend(parent, [TextPiece("a prompt of some length")])
        await run(client, parent, max_tokens=9, ignore_eos=True)
        children = await client.fork(parent, 3)
        ends = await asyncio.gather(*(run(client, child, max_tokens=5) for child in children))
        # all but the token whose KV was never computed
        assert [end[-1].usage.cached_tokens for end in ends] == [23 + 9 - 1] * 3
        assert len({text_of(end) for end in ends}) == 1


async def test_a_closed_branch_is_not_found() -> None:
    async with scripted_client() as client:
        branch = await client.open(ProgramSpec())
        await client.close(branch)
        with pytest.raises(NotFound):
            await client.extend(branch, [TextPiece("x")])


async def test_a_bad_field_is_named_and_the_engine_lives() -> None:
    async with scripted_client() as client:
        branch = await client.open(ProgramSpec())
        await client.extend(branch, [TextPiece("x")])
        with pytest.raises(BadRequest, match=r"\$\.top_p"):
            await anext(client.generate(branch, GenerateSpec(sampling=Sampling(top_p=0))))
        assert (await run(client, branch, max_tokens=1))[-1].reason == "length"


async def test_a_stopped_engine_answers_with_an_error() -> None:
    client = scripted_client()
    async with client:
        branch = await client.open(ProgramSpec())
    with pytest.raises(EngineFailed):
        await anext(client.generate(branch, GenerateSpec()))
