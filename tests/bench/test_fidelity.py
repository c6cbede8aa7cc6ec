"""S15 in small: the workload runs on an engine and in its twin, and both compute the same tokens."""

import asyncio

from ramet.bench.fidelity import Stopwatch, agents, play
from ramet.runtime.engine import Executor
from ramet.runtime.simulate.measured import MeasuredCost
from ramet.runtime.simulate.twin import EngineSettings, twin
from ramet.testing import scripted_client

COST = MeasuredCost((1e-3,) * 6, 0.0, 0.0, 0.0, (0.0, 0.0), 0.0)


def test_the_engine_and_its_twin_compute_the_same_tokens() -> None:
    """A pool that holds all, so that nothing depends on the time that steps take."""
    sessions = agents(2, seed=5)

    async def on_engine() -> float:
        async with scripted_client(num_pages=512, max_step_tokens=512) as client:
            return (await play(client, sessions, "run")).computed_tokens

    replay = twin(EngineSettings(policy="fcfs", kv_tokens=512 * 16), COST).open_loop(sessions)
    simulated = sum(turn.prompt_tokens - turn.cached_tokens for turn in replay.turns)
    assert asyncio.run(on_engine()) == simulated


def test_agents_are_the_same_for_a_seed_and_extend_themselves() -> None:
    assert agents(4, seed=1) == agents(4, seed=1) != agents(4, seed=2)
    for session in agents(4, seed=1):
        length = 0
        for turn in session.turns:
            assert turn.kept_tokens == length
            length += turn.new_tokens + turn.output_tokens


def test_a_stopwatch_notes_every_step_with_the_pause_after_it() -> None:
    watches: list[Stopwatch] = []

    def watched(inner: Executor) -> Stopwatch:
        watches.append(Stopwatch(inner))
        return watches[0]

    async def steps() -> None:
        async with scripted_client(num_pages=256, wrap=watched) as client:
            await play(client, agents(2, seed=5), "run")

    asyncio.run(steps())
    assert len(watches[0].steps) > 20
    assert all(step.compute_s >= 0 and step.shape.num_rows >= 1 for step in watches[0].steps)
    assert any(step.between_s is not None for step in watches[0].steps)
