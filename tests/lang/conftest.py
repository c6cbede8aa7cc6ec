"""Backends for programs under test: a fresh script each, checked to be empty when the test ends."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ramet.lang.backends.scripted import Scripted


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    """`scripted(script, ...)` makes a backend; afterwards nothing may run and no branch may be open in any of them."""
    made: list[Scripted] = []

    def make(*args: Any, **kwargs: Any) -> Scripted:
        made.append(Scripted(*args, **kwargs))
        return made[-1]

    yield make
    for backend in made:
        assert backend.client.running == 0
        assert backend.client.branches == {}
