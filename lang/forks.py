"""Branches that were forked together: saying to all, joining, and the first k. Knows states as what it holds.

What waits comes in two forms, as in `state.py`; what is done between the waits is the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for_futures
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from ramet.lang.loop import wait, wait_async
from ramet.lang.site import note
from ramet.runtime.errors import BadRequest, Cancelled, RametError

if TYPE_CHECKING:
    from ramet.lang.state import AsyncState, Face, State

S = TypeVar("S", bound="Face")
JoinMode = Literal["gather_variable", "concate_and_append"]


class NoSuchBranch(BadRequest, IndexError):
    """`forks[i]` beyond the last, or by a name."""

    __str__ = Exception.__str__


class ForksBase(Generic[S]):
    """Branches that were forked together."""

    def __init__(self, source: "Face", states: list[S]) -> None:
        self.source, self.states = source, states

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[S]:
        return iter(self.states)

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> list[S]: ...
    def __getitem__(self, index: int | slice) -> S | list[S]:
        try:
            return self.states[index]
        except (IndexError, TypeError):
            hint = f"Of all: [s[{index!r}] for s in forks]." if isinstance(index, str) else ""
            last = len(self.states) - 1
            raise NoSuchBranch(
                expected=f"a branch from 0 to {last}", got=index, at=f"forks[{index!r}]", hint=hint
            ) from None

    def __setitem__(self, index: int, value: S) -> None:
        """What Python does after `forks[i] += ...`."""
        if self.states[index] is not value:
            raise BadRequest(expected="forks[i] += ...", got="forks[i] = ...", at=f"forks[{index}]")

    def __iadd__(self, spoken: Any) -> Self:
        """To all the same; or of a list, to each its own; or what a function of the index gives."""
        if isinstance(spoken, list | tuple):
            if len(spoken) != len(self.states):
                raise BadRequest(
                    expected=f"{len(self.states)} expressions, one a branch", got=len(spoken), at="forks += [...]"
                )
            parts: Iterable[Any] = spoken
        elif callable(spoken):
            parts = map(spoken, range(len(self.states)))
        else:
            parts = [spoken] * len(self.states)
        for state, part in zip(self.states, parts, strict=True):
            state += part
        return self

    def _begin_join(self, mode: str) -> None:
        if mode not in ("gather_variable", "concate_and_append"):
            raise BadRequest(expected="gather_variable or concate_and_append", got=mode, at="forks.join(mode)")
        if any(state.branch.joined for state in self.states):
            raise BadRequest(expected="branches that were not joined yet", got="joined ones", at="forks.join()")
        if not self.source.branch.run.tracing:
            self.source.branch.gap("join", None, None)

    def _finish_join(self, mode: str) -> "list[Future[None]]":
        """Everything is done: give the source what the branches made, and close them."""
        source, branches = self.source.branch, [state.branch for state in self.states]
        if mode == "gather_variable":
            source.gather(branches)
        else:
            for branch in branches:
                source.absorb(branch)
        source._record(f"join({mode!r})")
        return [] if source.run.tracing else [source.run.close_branch(branch) for branch in branches]

    def _raise_first_error(self) -> None:
        for index, state in enumerate(self.states):
            if (error := state._error_now()) is not None:
                self._raise(error, index)

    def _raise(self, error: BaseException, index: int) -> None:
        fork = next(f for f in self.source.branch.forks if self.states[index].branch in f.children)
        note(error, f"branch {index} of fork({len(self.states)})", fork.site)
        raise error.with_traceback(None) if isinstance(error, RametError) else error

    def _check_k(self, k: int) -> None:
        if not 1 <= k <= len(self.states):
            raise BadRequest(expected=f"1 to {len(self.states)}", got=k, at="forks.first(k)")

    def _ordered(self, some: Iterable[S]) -> list[S]:
        """Those that ended together, in the order they were forked."""
        return sorted(some, key=self.states.index)

    def _check_enough(self, winners: list[S], k: int) -> None:
        if len(winners) < k:
            self._raise_first_error()

    def _close_losers(self, winners: list[S], k: int) -> "list[Future[None]]":
        run = self.source.branch.run
        losers = [s.branch for s in self.states if s not in winners and not s.branch.joined]
        return [run.close_branch(branch, _cancelled(k)) for branch in losers]


class Forks(ForksBase["State"]):
    """See ForksBase; asking waits."""

    def join(self, mode: JoinMode = "gather_variable") -> None:
        """Wait for all branches, then give their results to the state they were forked from, and close them.

        gather_variable: each name bound in a branch becomes a list on the source. concate_and_append: what the
        branches said is appended to the source, one after the other. The first error of a branch is raised here.
        """
        self._begin_join(mode)
        if not self.source.branch.run.tracing:
            wait_for_futures([state.branch.sync() for state in self.states])
        self._raise_first_error()
        for closing in self._finish_join(mode):
            wait(closing)

    def first(self, k: int = 1, where: "Callable[[State], bool] | None" = None) -> "list[State]":
        """Wait until `k` branches have ended well, and please `where`; cancel and free the rest.

        In the order they ended; fewer where not enough please. If branches failed and too few are left, that is raised.
        """
        self._check_k(k)
        waiting = {state.branch.sync(): state for state in self.states}
        winners: list[State] = []
        while len(winners) < k and waiting:
            ended, _ = wait_for_futures(waiting, return_when=FIRST_COMPLETED)
            for state in self._ordered(waiting.pop(future) for future in ended):
                if len(winners) < k and state._error_now() is None and (where is None or where(state)):
                    winners.append(state)
        self._check_enough(winners, k)
        for closing in self._close_losers(winners, k):
            wait(closing)
        return winners


class AsyncForks(ForksBase["AsyncState"]):
    """See ForksBase; asking is awaited."""

    async def join(self, mode: JoinMode = "gather_variable") -> None:
        self._begin_join(mode)
        if not self.source.branch.run.tracing:
            await asyncio.gather(*(wait_async(s.branch.sync()) for s in self.states), return_exceptions=True)
        self._raise_first_error()
        for closing in self._finish_join(mode):
            await wait_async(closing)

    async def first(
        self, k: int = 1, where: "Callable[[AsyncState], Awaitable[bool]] | None" = None
    ) -> "list[AsyncState]":
        """See Forks.first; `where` is awaited."""
        self._check_k(k)
        waiting = {asyncio.ensure_future(state.error()): state for state in self.states}
        winners: list[AsyncState] = []
        while len(winners) < k and waiting:
            ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for state in self._ordered(waiting.pop(task) for task in ended):
                if len(winners) < k and state._error_now() is None and (where is None or await where(state)):
                    winners.append(state)
        for task in waiting:
            task.cancel()
        self._check_enough(winners, k)
        for closing in self._close_losers(winners, k):
            await wait_async(closing)
        return winners


def _cancelled(k: int) -> Cancelled:
    return Cancelled(f"the first {k} of its fork were enough")
