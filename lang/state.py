"""The user's `s`: what a program says and asks. A thin face over a Branch, in two forms.

`State` waits where it must (`s["x"]`, `s.text()`), for plain functions; `AsyncState` gives awaitables instead, for
`async def` programs. Saying something (`s += ...`) returns at once in both. An error of the branch is raised here, by
the first thing that waits for it.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from ramet.lang import ir
from ramet.lang.branch import Branch, ProgramMark
from ramet.lang.forks import AsyncForks, Forks
from ramet.lang.hints import GAPS
from ramet.lang.loop import PROGRAMS, wait, wait_async
from ramet.lang.meta import meta_info
from ramet.lang.site import caller
from ramet.lang.tools import ToolResult
from ramet.lang.trace import show_tree
from ramet.lang.values import Slot
from ramet.runtime.errors import BadRequest, Cancelled, NotBuilt, RametError
from ramet.runtime.types import GapKind, Usage

if TYPE_CHECKING:
    from ramet.lang.run import Run

T = TypeVar("T")


class Face:
    """What both forms share: saying, and looking without waiting."""

    def __init__(self, branch: Branch, *, watches: bool = False) -> None:
        """watches: it is held outside of a program whose function still runs elsewhere."""
        self.branch = branch
        self._watches = watches
        self.ret_value: Any = None
        """What the program's function returned."""
        branch.faces.add(self)

    # Saying

    def __iadd__(self, spoken: ir.Spoken) -> Self:
        """Append text, an expression, a list of them, or what a function of the state gives. Returns at once."""
        self.branch.say(spoken, self)
        return self

    def __add__(self, spoken: ir.Spoken) -> Self:
        raise BadRequest(expected="s += ...", got="s + ...", at="s + ...", hint="A state is said to, never added.")

    def __radd__(self, before: object) -> Self:
        raise BadRequest(expected="text", got="a state", at="... + s", hint="Its text is s.text(), a variable s[name].")

    @overload
    def role(self, name: str, body: None = None) -> "RoleScope": ...
    @overload
    def role(self, name: str, body: ir.Spoken) -> "RoleScope | None": ...
    def role(self, name: str, body: ir.Spoken = None) -> "RoleScope | None":
        """A message of any role: with a body at once, without one as `with s.role("critic"):`."""
        if body is None:
            return RoleScope(self.branch, name)
        self.branch.say(ir.Role(name, body), self)
        return None

    def system(self, body: ir.Spoken = None) -> "RoleScope":
        return self._role("system", body)

    def user(self, body: ir.Spoken = None) -> "RoleScope":
        return self._role("user", body)

    def assistant(self, body: ir.Spoken = None) -> "RoleScope":
        return self._role("assistant", body)

    def tool(self, body: ir.Spoken = None) -> "RoleScope":
        return self._role("tool", body)

    def _role(self, name: str, body: ir.Spoken) -> "RoleScope":
        scope = RoleScope(self.branch, name)
        if body is not None:
            self.branch.say(ir.Role(name, body), self)
            scope.used = True
        return scope

    @contextmanager
    def var_scope(self, name: str) -> Generator[None]:
        """Bind `name` to the text that is said inside."""
        self.branch.say(ir.ScopeBegin(name), self)
        try:
            yield
        finally:
            self.branch.say(ir.ScopeEnd(name), self)

    @contextmanager
    def gap(
        self, *, tool: str | None = None, expected_s: float | None = None, kind: GapKind = "tool"
    ) -> Generator[None]:
        """The branch waits for something outside while the block runs: its KV stays by value, not by lock.

        expected_s: seconds, if you know better than the median of this tool's last gaps.
        """
        if tool is not None and expected_s is None:
            expected_s = GAPS.expected_s(tool)
        self.branch.gap(kind, tool, expected_s)
        started = time.monotonic()
        yield
        if tool is not None:
            GAPS.record(tool, time.monotonic() - started)

    def __setitem__(self, name: str, value: object) -> None:
        self.branch.set(name, value)

    def set_var(self, name: str, value: object) -> None:
        self.branch.set(name, value)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.branch.transcript.find(name) is not None

    def mark(self) -> ProgramMark:
        """A point of this branch to come back to. Returns at once."""
        return self.branch.mark()

    def rollback(self, mark: ProgramMark) -> None:
        """Cut back to the mark: text, messages and variables. Returns at once."""
        self.branch.rollback(mark)

    def use_tools(self, *tools: Any) -> None:
        """Show these tools to the model, through its chat template. Before the first message."""
        self.branch.say(ir.UseTools(tools), self)

    @property
    def outside(self) -> bool:
        """Names may still be said, and texts still grow, in a function that runs elsewhere."""
        return self._watches and not self.branch.run.body.done()

    # Looking

    @property
    def usage(self) -> Usage:
        """Tokens of the turns that have ended, here and in all branches below."""
        return self.branch.usage

    @property
    def program_id(self) -> str | None:
        """As the engine knows it; None in a trace."""
        return self.branch.run.program_id

    def tree(self) -> str:
        """The branches as a drawing, with the tokens that each computed and found cached."""
        return show_tree(self.branch)

    def __repr__(self) -> str:
        name, turns = self.branch.run.name, len(self.branch.turns)
        return f"<{type(self).__name__} of {name}: {turns} turns, variables {sorted(self.branch.transcript.names())}>"

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """Text as it comes, of one variable or of the whole branch.

        return_meta_data: of a variable, (text, meta) pairs; the last has an empty text and the meta of the whole.
        """
        if var_name is not None:
            slot = await wait_async(self.branch.slot_later(var_name, outside=self.outside))
            with self._meets_errors():
                async for piece in slot.stream.follow_async():
                    yield (piece, meta_info(slot)) if return_meta_data else piece
                if return_meta_data:
                    await wait_async(slot.value)
                    yield "", meta_info(slot)
        elif (rest := self._rest()) is not None:
            yield await wait_async(rest)
        else:
            with self._meets_errors():
                async for piece in self.branch.lane.stream.follow_async(self._watch()):
                    yield piece

    def _rest(self) -> "Future[str] | None":
        """The whole text, where the branch has ended and nothing will stream any more."""
        lane = self.branch.lane
        return self.branch.text() if lane.closed and not lane.watched and lane.error is None else None

    def _watch(self) -> "Future[None] | None":
        """Make the lane report its text. In the program's own body the end of what was said so far is the end."""
        lane = self.branch.lane
        if not lane.watched and lane.error is None:
            lane.submit(lane.watch, "text_iter()", caller())
        return None if self.outside else self.branch.sync()

    # Errors

    def _met(self) -> None:
        """Somebody knows now."""
        self.branch.run.seen.add(id(self.branch))

    @contextmanager
    def _meets_errors(self) -> Generator[None]:
        """Raise the body's own error first; trim our machinery off the traceback of errors that explain themselves."""
        run = self.branch.run
        if run.error is not None:
            self._met()
            raise run.error
        try:
            yield
        except Exception as error:
            self._met()
            if run.error is not None and run.error is not error:
                raise run.error from None  # the branch was only cancelled because the body failed
            if isinstance(error, RametError):
                raise error.with_traceback(None) from None
            raise

    def _error_now(self) -> BaseException | None:
        """After `sync()`."""
        error = self.branch.run.error or self.branch.lane.error
        if error is not None:
            self._met()
        return error


class RoleScope:
    """`with s.user():` - the message ends with the block."""

    def __init__(self, branch: Branch, role: str) -> None:
        self._branch, self._role = branch, role
        self.used = False

    def __enter__(self) -> None:
        if self.used:
            raise BadRequest(
                expected="one form", got=f"with s.{self._role}(body):", at=f"s.{self._role}", hint="Leave the body out."
            )
        self._branch.say(ir.RoleBegin(self._role), None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._branch.say(ir.RoleEnd(self._role), None)


class State(Face):
    """A branch, for plain functions and for what `run` returns: asking waits."""

    def __getitem__(self, name: str) -> Any:
        """The value of a variable; waits until it is there."""
        return self._wait(self._slot(name).value)

    def _slot(self, name: str) -> Slot:
        return self._wait(self.branch.slot_later(name, outside=self.outside))

    def get_var(self, name: str) -> Any:
        return self[name]

    @overload
    def get(self, name: str) -> Any: ...
    @overload
    def get(self, name: str, kind: type[T]) -> T: ...
    def get(self, name: str, kind: Any = object) -> Any:
        """The value, checked to be of a type: `s.get("age", int)` is an int for type checkers too."""
        return _checked(self[name], kind, name)

    def text(self) -> str:
        """The branch's text as the model sees it, the marks of the chat template included; waits."""
        return self._wait(self.branch.text(outside=self.outside))

    def tokens(self) -> list[int]:
        """The branch's token ids; waits. While the program runs."""
        return self._wait(self.branch.token_ids())

    def messages(self) -> list[dict[str, Any]]:
        """The chat so far, as role and content; waits."""
        self.sync()
        return self.branch.messages()

    def sync(self) -> None:
        """Wait until everything said so far is done."""
        self._wait(self.branch.sync(outside=self.outside))

    def error(self) -> BaseException | None:
        """The error of this branch, or None; waits."""
        wait_for_futures([self.branch.sync(outside=self.outside)])
        return self._error_now()

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """How a variable was made: finish reason, tokens, logprobs; waits."""
        slot = self._slot(name)
        self._wait(slot.value)
        return meta_info(slot)

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Text as it comes, of one variable or of the whole branch."""
        if var_name is None and (rest := self._rest()) is not None:
            yield self._wait(rest)
            return
        if var_name is not None:
            follow = self._slot(var_name).stream.follow()
        else:
            follow = self.branch.lane.stream.follow(self._watch())
        with self._meets_errors():
            yield from follow

    def fork(self, size: int = 1, position_ids_offset: object = None) -> "Forks":
        """`size` branches that continue from here, side by side. Returns at once; nothing is copied."""
        _no_offsets(position_ids_offset)
        return Forks(self, [State(child) for child in self.branch.fork(size)])

    def copy(self, position_ids_offset: object = None) -> "State":
        """One more branch from here; `with s.copy() as c:` closes it after the block."""
        return self.fork(1, position_ids_offset)[0]

    def close(self) -> None:
        """Cancel what this branch still does and free what only it held."""
        wait(self.branch.run.close_branch(self.branch, Cancelled("the branch was closed by its program")))

    def __enter__(self) -> "State":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not self.branch.joined and not self.branch.run.tracing:
            wait(self.branch.run.close_branch(self.branch))

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write the whole program to a file, once what was said so far is done: `program.restore(path)` goes on there.

        All branches are saved: texts, tokens, variables, open messages and gaps. Values that are neither plain nor
        made by `gen` are refused by name. The file appears whole, or not at all.
        """
        if not self.branch.run.tracing:
            self._wait(PROGRAMS.start(_checkpoint(self.branch.run, path)))

    def call_tools(self, *tools: Any) -> list[ToolResult]:
        """Run the tool calls of the last assistant's message side by side and append their results. [] where there are
        none.

        tools: functions to offer besides those of gen(tools=...) and use_tools. Errors of tools are text for the model.
        """
        self.sync()
        if not (calls := self.branch.pending_calls()):
            return []
        results = self._wait(self.branch.run_calls(calls, tools))
        self.branch.say_results(results)
        return results

    def _wait(self, future: "Future[T]") -> T:
        with self._meets_errors():
            return wait(future)


class NotAwaited(BadRequest, TypeError, AttributeError):
    """A value of an async program was used before it was awaited."""

    __str__ = Exception.__str__


class Awaiting(Generic[T]):
    """A value to be awaited; says so where it is used without."""

    def __init__(self, name: str, make: Callable[[], Awaitable[T]]) -> None:
        self._name, self._make = name, make

    def __await__(self) -> Generator[Any, None, T]:
        return self._make().__await__()

    def _refuse(self, *_: object) -> Any:
        raise NotAwaited(
            expected=f"await {self._name}",
            got=self._name,
            at=self._name,
            hint=f"In async programs values are awaited: (await {self._name}).",
        )

    __str__ = _refuse
    if not TYPE_CHECKING:  # type checkers are to find it before it runs
        __bool__ = __len__ = __iter__ = __int__ = __float__ = __getitem__ = __contains__ = __call__ = _refuse
        __add__ = __radd__ = __eq__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
        __hash__ = object.__hash__

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # protocols that Python looks for by itself
                raise AttributeError(name)
            return self._refuse()


class AsyncState(Face):
    """A branch, for `async def` programs: asking gives an awaitable."""

    def __getitem__(self, name: str) -> Awaiting[Any]:
        slot = self.branch.slot(name)
        return Awaiting(f"s[{name!r}]", lambda: self._wait(slot.value))

    @overload
    async def get(self, name: str) -> Any: ...
    @overload
    async def get(self, name: str, kind: type[T]) -> T: ...
    async def get(self, name: str, kind: Any = object) -> Any:
        """The value, checked to be of a type."""
        return _checked(await self[name], kind, name)

    async def text(self) -> str:
        return await self._wait(self.branch.text())

    async def tokens(self) -> list[int]:
        return await self._wait(self.branch.token_ids())

    async def messages(self) -> list[dict[str, Any]]:
        await self.sync()
        return self.branch.messages()

    async def sync(self) -> None:
        await self._wait(self.branch.sync())

    async def error(self) -> BaseException | None:
        await asyncio.gather(wait_async(self.branch.sync()), return_exceptions=True)
        return self._error_now()

    async def get_meta_info(self, name: str) -> dict[str, Any]:
        slot = self.branch.slot(name)
        await self._wait(slot.value)
        return meta_info(slot)

    def text_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        return self.text_async_iter(var_name)

    def fork(self, size: int = 1, position_ids_offset: object = None) -> "AsyncForks":
        _no_offsets(position_ids_offset)
        return AsyncForks(self, [AsyncState(child) for child in self.branch.fork(size)])

    def copy(self, position_ids_offset: object = None) -> "AsyncState":
        return self.fork(1, position_ids_offset)[0]

    async def close(self) -> None:
        await wait_async(self.branch.run.close_branch(self.branch, Cancelled("the branch was closed by its program")))

    async def __aenter__(self) -> "AsyncState":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if not self.branch.joined and not self.branch.run.tracing:
            await wait_async(self.branch.run.close_branch(self.branch))

    async def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """See State.checkpoint."""
        if not self.branch.run.tracing:
            await self._wait(PROGRAMS.start(_checkpoint(self.branch.run, path)))

    async def call_tools(self, *tools: Any) -> list[ToolResult]:
        await self.sync()
        if not (calls := self.branch.pending_calls()):
            return []
        results = await self._wait(self.branch.run_calls(calls, tools))
        self.branch.say_results(results)
        return results

    async def _wait(self, future: "Future[T]") -> T:
        with self._meets_errors():
            return await wait_async(future)


async def _checkpoint(run: "Run", path: str | os.PathLike[str]) -> None:
    from ramet.lang.checkpoint import checkpoint  # late: programs that save nothing pay nothing for it

    await checkpoint(run, path)


def _no_offsets(offset: object) -> None:
    if offset is not None:
        raise NotBuilt(
            "fork(position_ids_offset=...)", hint="Leave it out: branches continue at the position they fork from."
        )


def _checked(value: Any, kind: Any, name: str) -> Any:
    if not isinstance(value, kind):
        raise BadRequest(
            expected=kind.__name__,
            got=value,
            at=f"s[{name!r}]",
            hint=f"gen({name!r}, dtype={kind.__name__}) makes one.",
        )
    return value
