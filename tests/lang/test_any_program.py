"""Whatever a program says, forks, joins and takes back: its texts are those of a model that is only strings.

The reply to a prompt is a function of the prompt's text, so two backends and the model agree only if every branch holds
exactly what was said on it.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet import State, function, gen, select
from ramet.lang.backends.base import Ready
from ramet.lang.backends.scripted import Scripted
from ramet.lang.loop import PROGRAMS
from ramet.testing import scripted_client

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["say", "gen", "select", "fork", "first", "join", "append", "mark", "rollback", "set"]),
        st.integers(0, 5),
    ),
    max_size=14,
)


def reply(text: str) -> str:
    return hashlib.blake2s(text.encode(), digest_size=2).hexdigest()


class Path:
    """A branch and what it should hold."""

    def __init__(self, state: State, text: str, names: dict[str, Any]) -> None:
        self.state, self.text, self.names = state, text, dict(names)
        self.marks: list[tuple[Any, str, dict[str, Any]]] = []

    def check(self) -> None:
        assert self.state.text() == self.text
        for name, value in self.names.items():
            assert self.state[name] == value
        assert "never" not in self.state


class Walk:
    """Does to a program and to its model the same."""

    def __init__(self, s: State) -> None:
        self.paths = [Path(s, "", {})]

    def step(self, operation: str, number: int) -> None:
        path = self.paths[number % len(self.paths)]
        getattr(self, operation)(path, number)

    def say(self, path: Path, number: int) -> None:
        path.state += (word := f"w{number} ")
        path.text += word

    def gen(self, path: Path, number: int) -> None:
        path.state += gen(f"v{number}", max_tokens=8, temperature=0)
        path.names[f"v{number}"] = reply(path.text)
        path.text += reply(path.text)

    def select(self, path: Path, number: int) -> None:
        path.state += select("one", [f"only{number}"])
        path.names["one"] = f"only{number}"
        path.text += f"only{number}"

    def fork(self, path: Path, number: int) -> None:
        if len(self.paths) < 8:
            forks = path.state.fork(2)
            self.paths += [Path(child, path.text, path.names) for child in forks]

    def first(self, path: Path, number: int) -> None:
        forks = path.state.fork(2)
        forks += gen("f", max_tokens=8, temperature=0)
        (winner,) = forks.first(1)
        assert winner["f"] == reply(path.text) and winner.text() == path.text + reply(path.text)

    def join(self, path: Path, number: int) -> None:
        forks = path.state.fork(2)
        forks += lambda i: f"b{i} " + gen("g", max_tokens=8, temperature=0)
        forks.join()
        path.names["g"] = [reply(path.text + f"b{i} ") for i in range(2)]

    def append(self, path: Path, number: int) -> None:
        forks = path.state.fork(2)
        forks += lambda i: f"b{i} " + gen("h", max_tokens=8, temperature=0)
        forks.join("concate_and_append")
        said = [f"b{i} " + reply(path.text + f"b{i} ") for i in range(2)]
        path.text += "".join(said)

    def mark(self, path: Path, number: int) -> None:
        path.marks.append((path.state.mark(), path.text, dict(path.names)))

    def rollback(self, path: Path, number: int) -> None:
        if path.marks:
            mark, path.text, names = path.marks[-1]
            path.names = dict(names)
            path.state.rollback(mark)

    def set(self, path: Path, number: int) -> None:
        path.state[f"s{number}"] = number
        path.names[f"s{number}"] = number


@function
def walk(s: State, operations: list[tuple[str, int]]) -> None:
    s += "begin "
    one = Walk(s)
    one.paths[0].text = "begin "
    for operation, number in operations:
        one.step(operation, number)
    for path in one.paths:
        path.check()


@pytest.fixture(scope="module")
def engine() -> Iterator[Ready]:
    backend = Ready(scripted_client(reply, num_pages=4096, page_size=4).start())
    yield backend
    now = PROGRAMS.start(backend.client.statistics()).result(5)
    assert now.num_branches == now.num_running == 0
    assert now.free_pages + now.evictable_pages == now.total_pages
    backend.client.stop()  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
def test_a_program_holds_what_was_said_on_it(operations: list[tuple[str, int]], engine: Ready) -> None:
    scripted = Scripted(lambda prompt: reply(prompt.text))
    walk.run(operations, backend=scripted)
    assert scripted.client.branches == {}
    walk.run(operations, backend=engine)
