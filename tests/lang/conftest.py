"""Backends for programs under test: a fresh script each, checked to be empty when the test ends."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ramet.lang.backends.scripted import Scripted, ScriptedClient


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    """`scripted(script, ...)` makes a backend; afterwards nothing may run and no branch may be open in any of them."""
    made: list[Scripted] = []

    def make(*args: Any, **kwargs: Any) -> Scripted:
        made.append(Scripted(*args, **kwargs))
        return made[-1]

    yield make
    for backend in made:
        assert_empties(backend.client)


def assert_empties(client: ScriptedClient, limit_s: float = 5.0) -> None:
    """A streamed run may still be closing when its last text was read: soon nothing runs and no branch is open."""
    deadline = time.monotonic() + limit_s
    while (client.running or client.branches) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert client.running == 0 and client.branches == {}


@pytest.fixture
def empties() -> Callable[[ScriptedClient], None]:
    return assert_empties
