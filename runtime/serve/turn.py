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
        events = _single(engine, branches[0], specs[0]) if turn.n == 1 else _merged(engine, branches, specs)
        async with closing(events) as choices:
            async for choice in choices:
                ended = isinstance(choice.event, Finished)
                yield choice
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


async def _single(engine: EngineClient, branch: BranchHandle, spec: GenerateSpec) -> AsyncIterator[Choice]:
    async with closing(engine.generate(branch, spec)) as events:
        async for event in events:
            yield Choice(0, event)


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


async def _merged(
    engine: EngineClient, branches: Sequence[BranchHandle], specs: Sequence[GenerateSpec]
) -> AsyncIterator[Choice]:
    queue: asyncio.Queue[Choice | RametError | None] = asyncio.Queue()

    async def pump(index: int) -> None:
        try:
            async with closing(engine.generate(branches[index], specs[index])) as events:
                async for event in events:
                    queue.put_nowait(Choice(index, event))
            queue.put_nowait(None)
        except RametError as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(pump(index)) for index in range(len(branches))]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, RametError):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
