"""One request as the engine sees it, and the run of it: open, extend, fork for n, generate, close.

Every dialect ends here and starts here again: an adapter makes a Turn, and reads the numbered events of its choices.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from ramet.runtime.client import EngineClient
from ramet.runtime.errors import RametError
from ramet.runtime.serve.kept import KeptBranches
from ramet.runtime.types import BranchHandle, Event, Finished, GenerateSpec, ProgramSpec, TokensPiece

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one choice-generating request asks of the engine."""

    request_id: str
    program: ProgramSpec
    prompt: Sequence[int]
    """Token ids: what was cached is found by them."""
    spec: GenerateSpec
    n: int = 1


class Choice(NamedTuple):
    """An event of one of the n choices."""

    number: int
    event: Event


async def run_turn(engine: EngineClient, turn: Turn, kept: KeptBranches) -> AsyncIterator[Choice]:
    """The events of all choices, as they come. Closing this iterator aborts all of them and frees what they held.

    A turn with one choice goes on from the branch that its program kept, and leaves one behind.
    """
    branches = [await _first_branch(engine, turn, kept)]
    ended = False
    try:
        if turn.n > 1:
            branches += await engine.fork(branches[0], turn.n - 1)
        specs = [_nth_spec(turn.spec, index) for index in range(turn.n)]
        events = [engine.generate(branch, spec) for branch, spec in zip(branches, specs, strict=True)]
        async with closing(merged(events)) as choices:
            async for number, event in choices:
                ended = isinstance(event, Finished)
                yield Choice(number, event)
    finally:
        await asyncio.shield(_end(engine, turn, kept, branches, ended=ended))


async def _first_branch(engine: EngineClient, turn: Turn, kept: KeptBranches) -> BranchHandle:
    """The branch that holds the prompt: a kept one and what is new, or a new one and all of it."""
    found = await kept.take(turn.program.program_id or "", turn.prompt) if turn.n == 1 else None
    branch, start = (found.branch, len(found.tokens)) if found else (await engine.open(turn.program), 0)
    try:
        await engine.extend(branch, [TokensPiece(list(turn.prompt[start:]))])
    except BaseException:
        await asyncio.shield(_close(engine, [branch]))
        raise
    return branch


async def _end(
    engine: EngineClient, turn: Turn, kept: KeptBranches, branches: Sequence[BranchHandle], *, ended: bool
) -> None:
    if ended and turn.n == 1 and turn.program.program_id:
        with contextlib.suppress(RametError):
            await kept.put(turn.program.program_id, branches[0])
    else:
        await _close(engine, branches)


def _nth_spec(spec: GenerateSpec, index: int) -> GenerateSpec:
    """The same request with a seed of its own, so that n seeded choices differ from each other, not between runs."""
    if spec.sampling.seed is None or index == 0:
        return spec
    sampling = msgspec.structs.replace(spec.sampling, seed=(spec.sampling.seed + index) % 2**63)
    return msgspec.structs.replace(spec, sampling=sampling)


async def _close(engine: EngineClient, branches: Sequence[BranchHandle]) -> None:
    for branch in branches:
        with contextlib.suppress(RametError):  # a dead engine has closed everything already
            await engine.close(branch)


@contextlib.asynccontextmanager
async def closing(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Whatever ends the loop over `items`, they are told to stop."""
    try:
        yield items
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


async def merged(sources: Sequence[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T]]:
    """The items of all sources as they come, each with its source's number; the first error ends all of them."""
    if len(sources) == 1:
        async with closing(sources[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | RametError | None] = asyncio.Queue()

    async def pump(number: int) -> None:
        try:
            async with closing(sources[number]) as items:
                async for item in items:
                    queue.put_nowait((number, item))
            queue.put_nowait(None)
        except RametError as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(pump(number)) for number in range(len(sources))]
    try:
        running = len(tasks)
        while running:
            found = await queue.get()
            if isinstance(found, RametError):
                raise found
            if found is None:
                running -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
