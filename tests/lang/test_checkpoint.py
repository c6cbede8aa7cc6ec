"""Programs that are saved to a file and go on in another engine; over the scripted model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ramet import AsyncState, State, assistant, function, gen, gen_int, select, tool, user
from ramet.lang.backends.base import Ready
from ramet.lang.backends.scripted import Scripted
from ramet.lang.calls import write_call
from ramet.lang.checkpoint import CheckpointCorrupt
from ramet.runtime.errors import BadRequest, NotBuilt
from ramet.testing import scripted_client

Engines = Callable[..., Ready]


@pytest.fixture
def engine() -> Iterator[Engines]:
    """`engine(replies)`; afterwards no program is open."""
    made: list[Any] = []

    def make(replies: Any = None) -> Ready:
        made.append(scripted_client(replies).start())
        return Ready(made[-1])

    yield make
    for client in made:
        assert client._branches.num_programs == 0
        client.stop()


def said(s: State) -> list[Any]:
    """What a program goes on to say, and what came of it."""
    s += gen("next", max_tokens=20, temperature=0.9, seed=7, ignore_eos=True)
    s += " or " + gen("greedy", max_tokens=20, temperature=0, ignore_eos=True)
    s += select("pick", ["one", "two"])
    return [s["next"], s["greedy"], s["pick"], s.text(), s.tokens(), s["first"], s["note"]]


@function
def story(s: State, file: Path) -> list[Any]:
    s += "Once upon a time" + gen("first", max_tokens=12, temperature=0.8, seed=1, ignore_eos=True)
    s["note"] = {"page": 3, "names": ["A", "B"]}
    s += " and then"
    s.checkpoint(file)
    return said(s)


def test_a_program_goes_on_with_the_same_tokens(engine: Engines, tmp_path: Path) -> None:
    undisturbed = story.run(tmp_path / "a", backend=engine()).ret_value
    restored = story.restore(tmp_path / "a", backend=engine())
    with restored as s:
        assert s.text().endswith(" and then")
        assert s.get_meta_info("first")["completion_tokens"] == 12
        usage = s.usage.completion_tokens
        assert said(s) == undisturbed
        assert s.usage.completion_tokens == usage + 40
    assert restored.state.text() == undisturbed[3]


async def test_async_programs_too(engine: Engines, tmp_path: Path) -> None:
    @function
    async def program(s: AsyncState) -> str:
        s += "Hello " + gen("a", max_tokens=5, temperature=0, ignore_eos=True)
        await s.checkpoint(tmp_path / "a")
        s += gen("b", max_tokens=9, temperature=0, ignore_eos=True)
        return await s["b"]

    undisturbed = (await program.arun(backend=engine())).ret_value
    async with program.restore(tmp_path / "a", backend=engine()) as s:
        s += gen("b", max_tokens=9, temperature=0, ignore_eos=True)
        assert await s["b"] == undisturbed


def test_open_messages_and_forks_come_back(engine: Engines, tmp_path: Path) -> None:
    def go_on(left: State, right: State) -> list[Any]:
        for branch in (left, right):
            branch += gen("end", max_tokens=8, temperature=0.9, seed=2, ignore_eos=True)

        return [left["end"], right["end"], left["mine"], right["mine"], left.text(), right.text()]

    outcome: list[Any] = []

    @function
    def program(s: State) -> None:
        s += user("Pick a side.")
        with s.assistant():
            s += "I take "
            left, right = s.fork(2)
            for name, branch in (("left", left), ("right", right)):
                branch += name + ": "
                branch += gen("mine", max_tokens=4, temperature=0, ignore_eos=True)
            left.checkpoint(tmp_path / "a")
            outcome.extend(go_on(left, right))

    program.run(backend=engine())
    restored = program.restore(tmp_path / "a", backend=engine())
    with restored:
        assert len(restored.states) == 3
        assert go_on(*restored.states[1:]) == outcome


def test_chat_tools_and_their_results_go_on(engine: Engines, tmp_path: Path) -> None:
    @tool
    def weather(city: str) -> str:
        """The weather."""
        return f"sun in {city}"

    replies = [write_call("weather", '{"city": "Rome"}'), "It is sunny."]

    def go_on(s: State) -> list[Any]:
        results = s.call_tools()
        s += assistant(gen("answer"))
        return [s["answer"], [result.text for result in results], s.messages()]

    @function
    def program(s: State) -> list[Any]:
        s += user("Weather in Rome?")
        s += assistant(gen("call", tools=[weather]))
        s.checkpoint(tmp_path / "a")
        return go_on(s)

    undisturbed = program.run(backend=engine(replies)).ret_value
    assert undisturbed[1] == ["sun in Rome"]
    with program.restore(tmp_path / "a", backend=engine(replies[1:]), tools=[weather]) as s:
        assert go_on(s) == undisturbed
    with pytest.raises(BadRequest, match="none called weather"):
        program.restore(tmp_path / "a", backend=engine())


@dataclass
class Point:
    x: int


def test_typed_values_are_read_again_by_the_type_that_is_named(engine: Engines, tmp_path: Path) -> None:
    @function
    def program(s: State) -> None:
        s += "At " + gen("point", dtype=Point) + gen_int("number")
        assert s["point"] == Point(3)
        s.checkpoint(tmp_path / "a")

    program.run(backend=engine(['{"x":3}', "42"]))
    with program.restore(tmp_path / "a", backend=engine(), types={"point": Point}) as s:
        assert s["point"] == Point(3) and s["number"] == 42
    with program.restore(tmp_path / "a", backend=engine()) as s, pytest.raises(BadRequest, match="types="):
        s["point"]


def test_a_value_that_is_not_plain_is_refused_by_name(engine: Engines, tmp_path: Path) -> None:
    @function
    def program(s: State) -> None:
        s["where"] = Point(1)
        s.checkpoint(tmp_path / "a")

    with pytest.raises(BadRequest, match=r"s\['where'\]"):
        program.run(backend=engine())
    assert not (tmp_path / "a").exists()


def test_a_gap_stays_open(engine: Engines, tmp_path: Path) -> None:
    backend = engine()

    @function
    def program(s: State) -> None:
        s += "a" + gen("b", max_tokens=2, ignore_eos=True)
        with s.gap(tool="search", expected_s=5):
            s.checkpoint(tmp_path / "a")

    program.run(backend=backend)
    with program.restore(tmp_path / "a", backend=backend) as s:
        branch = backend.client._branches.get(s.branch.lane.handle)  # type: ignore[attr-defined]
        assert (branch.gap.tool, branch.gap.expected_s) == ("search", 5)
        s += gen("c", max_tokens=2, ignore_eos=True)
        assert len(s["c"]) and branch.gap is None


def test_torn_changed_and_foreign_files_are_refused(engine: Engines, tmp_path: Path) -> None:
    file = tmp_path / "a"
    story.run(file, backend=engine())
    whole = file.read_bytes()
    for bad in (whole[:-1], whole[:40], b"", whole[:200] + bytes([whole[200] ^ 4]) + whole[201:]):
        file.write_bytes(bad)
        with pytest.raises(CheckpointCorrupt, match="Nothing was restored"):
            story.restore(file, backend=engine())
    with pytest.raises(BadRequest, match="No such file"):
        story.restore(tmp_path / "b", backend=engine())
    file.write_bytes(whole)

    @function
    def other(s: State) -> None: ...

    with pytest.raises(BadRequest, match="a checkpoint of other"):
        other.restore(file, backend=engine())


def test_a_backend_that_keeps_no_programs_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotBuilt, match="Engine"):
        story.run(tmp_path / "a", backend=Scripted("x"))
