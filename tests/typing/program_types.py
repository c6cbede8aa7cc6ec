"""What a user of the language sees typed. Checked by mypy in test_types.py, never run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, assert_type

import ramet
from ramet import AsyncForks, AsyncState, Forks, Program, State, Tool, ToolResult
from ramet.runtime.types import Usage


@dataclass
class City:
    name: str


@ramet.function
def program(s: State, question: str, n: int = 3) -> int:
    s += ramet.user(question)
    s += ramet.assistant("So: " + ramet.gen("a", 8, stop="\n", temperature=0.5) + "!")
    s += [ramet.gen("b"), "text"]
    s += lambda state: ramet.gen("c")
    with s.user(), s.var_scope("scope"):
        s += ramet.gen_int("age", 4)
    forks = s.fork(n)
    forks += lambda i: f"{i}"
    forks.join("concate_and_append")
    assert_type(forks, Forks)
    assert_type(forks[0], State)
    assert_type(forks.first(2), list[State])
    assert_type(s["a"], Any)
    assert_type(s.get("age", int), int)
    assert_type(s.get("city", City), City)
    assert_type(s.text(), str)
    assert_type(s.usage, Usage)
    assert_type(s.call_tools(), list[ToolResult])
    return s.get("age", int)


@ramet.function
async def async_program(s: AsyncState, question: str) -> str:
    s += ramet.user(question) + ramet.assistant(ramet.gen("a"))
    forks = s.fork(2)
    assert_type(forks, AsyncForks)
    await forks.join()
    assert_type(await s["a"], Any)
    assert_type(await s.get("a", str), str)
    assert_type(await s.call_tools(), list[ToolResult])
    return await s.text()


@ramet.function(num_api_spec_tokens=8)
def with_options(s: State, x: int) -> None: ...


@ramet.tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@ramet.tool(timeout_s=1.0, retries=2)
async def fetch(url: str) -> str:
    """Fetch."""
    return url


def results() -> None:
    assert_type(program.run(question="?", temperature=0.1), State)
    assert_type(program("?", n=2), State)
    assert_type(program.bind(n=3), Program[..., int])
    assert_type(add(1, b=2), int)
    checked: Callable[..., Awaitable[str]] = fetch
    tool: Tool[..., Any] = add
    print(checked, tool)


def inline(s: State) -> None:
    assert_type(program(s, "?"), int)


async def from_async() -> None:
    assert_type(await program.arun("?"), State)
    assert_type(await async_program.arun("?"), State)


def wrong(s: State) -> None:
    ramet.gen("a", temprature=0.5)  # type: ignore[call-arg]
    ramet.gen("a", temperature="hot")  # type: ignore[arg-type]
    ramet.select("a", ["x"], choices_method="best")  # type: ignore[arg-type]
    add("1", 2)  # type: ignore[arg-type]
    s.fork("2")  # type: ignore[arg-type]
    s.fork(2).join("concat")  # type: ignore[arg-type]
