"""Many programs that open, fork, roll back, select, leave and come back, over a pool too small for them all at once."""

import asyncio
import random

import pytest
from tests.runtime.scheduler.driver import undisturbed

from ramet.runtime.errors import ContextOverflow, TimedOut
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    Finished,
    GenerateSpec,
    Message,
    MessagesPiece,
    ProgramSpec,
    Sampling,
    TextPiece,
)
from ramet.testing import ScriptedModel, scripted_client

MODEL = ScriptedModel.seeded(11)
WORDS = ["alpha ", "beta ", "gamma ", "a longer run of words that fills pages ", "x"]


class Walker:
    """One program's random walk; every generation is compared with the one that the model alone would have given."""

    def __init__(self, client, seed: int) -> None:
        self.client, self.random = client, random.Random(seed)
        self.branches: list[BranchHandle] = []
        self.num_compared = 0

    async def walk(self, num_actions: int) -> None:
        first = await self.client.open(ProgramSpec(salt=self.random.choice(["", "", "salted"])))
        self.branches.append(first)
        await self.client.extend(first, [TextPiece("shared beginning, ")])
        for _ in range(num_actions):
            action = self.random.choice(
                [self.turn, self.turn, self.turn, self.fork, self.back, self.choose, self.leave, self.talk]
            )
            await action(self.random.choice(self.branches))
        await self.client.close(first, program=True)

    async def turn(self, branch: BranchHandle) -> None:
        await self.client.extend(branch, [TextPiece(self.random.choice(WORDS))])
        spec = GenerateSpec(
            max_tokens=self.random.choice([1, 3, 12]),
            sampling=self.random.choice(
                [Sampling(temperature=0), Sampling(temperature=0.7, seed=self.random.randint(0, 5))]
            ),
        )
        prompt = await self.client.tokens(branch)
        try:
            events = [event async for event in self.client.generate(branch, spec)]
        except ContextOverflow:
            return
        end = events[-1]
        assert isinstance(end, Finished)
        tokens = [token for event in events if isinstance(event, Delta) for token in event.tokens]
        expected = undisturbed(MODEL, prompt, spec)
        assert tokens == (expected if end.reason == "stop" else expected[: len(tokens)])
        assert await self.client.tokens(branch) == prompt + tokens
        self.num_compared += 1

    async def fork(self, branch: BranchHandle) -> None:
        if len(self.branches) < 6:
            self.branches += await self.client.fork(branch, self.random.randint(1, 3))

    async def back(self, branch: BranchHandle) -> None:
        mark = await self.client.mark(branch)
        before = await self.client.tokens(branch)
        await self.turn(branch)
        await self.client.rollback(branch, mark)
        assert await self.client.tokens(branch) == before

    async def choose(self, branch: BranchHandle) -> None:
        choices = self.random.sample(["yes", "no", "yes and no", "neither", ""], 3)
        try:
            first = await self.client.select(branch, choices, append=False)
            second = await self.client.select(branch, choices[::-1])
        except ContextOverflow:
            return
        assert choices[first.index] == choices[::-1][second.index]
        assert sorted(first.scores) == pytest.approx(sorted(second.scores))

    async def leave(self, branch: BranchHandle) -> None:
        """In the middle of a generation: by closing it, by cancelling, or by its own timeout."""
        mark = await self.client.mark(branch)
        how = self.random.choice(["close", "cancel", "timeout"])
        spec = GenerateSpec(max_tokens=5000, ignore_eos=True, timeout_s=0.003 if how == "timeout" else None)
        stream = self.client.generate(branch, spec)
        try:
            if how == "cancel":
                task = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            elif how == "close":
                await anext(stream)
            else:
                async for _ in stream:
                    pass
        except (ContextOverflow, TimedOut):
            pass
        await stream.aclose()
        await self.client.rollback(branch, mark)

    async def talk(self, branch: BranchHandle) -> None:
        fresh = await self.client.open(ProgramSpec())
        for words in ("hello", "and then?"):
            piece = MessagesPiece(messages=[Message(role="user", content=words)], add_generation_prompt=True)
            await self.client.extend(fresh, [piece])
            await self.turn(fresh)
        await self.client.close(fresh)


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (0, {"num_pages": 4000}),
        (1, {"num_pages": 120, "page_size": 4, "max_step_tokens": 32}),
        (2, {"num_pages": 60, "page_size": 8, "high_water": 3.0, "max_running": 6}),
        (3, {"num_pages": 300, "page_size": 1, "order": "lpm"}),
        (4, {"num_pages": 40, "page_size": 16, "cache": False}),
    ],
)
async def test_nobody_is_disturbed_and_nothing_is_left_behind(seed: int, settings: dict) -> None:
    async with scripted_client(MODEL, context_length=400, **settings) as client:
        walkers = [Walker(client, seed * 100 + number) for number in range(8)]
        await asyncio.wait_for(asyncio.gather(*(walker.walk(14) for walker in walkers)), 60)
        assert sum(walker.num_compared for walker in walkers) > 50
        statistics = await client.statistics()
        assert (statistics.num_programs, statistics.num_running, statistics.leased_pages) == (0, 0, 0)
        assert statistics.free_pages + statistics.evictable_pages == statistics.total_pages
        assert not client._on_end and not len(client._switchboard)
