"""What every EngineClient keeps, in this process or behind a socket: the same programs, the same answers, the same
errors."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import zmq
import zmq.asyncio

from ramet.runtime.client import EngineClient
from ramet.runtime.errors import BadRequest, ContextOverflow, NotFound, TimedOut
from ramet.runtime.serve import frames
from ramet.runtime.serve.engine_process import EngineServer
from ramet.runtime.serve.ipc_client import IpcClient
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    Event,
    Finished,
    GenerateSpec,
    Message,
    MessagesPiece,
    ProgramSpec,
    Sampling,
    TextPiece,
    TokensPiece,
)
from ramet.testing import scripted_client

GREEDY = Sampling(temperature=0)
REPLIES = {"capital of France": "Paris", "capital of Italy": "Rome", "count": "one two three four"}
_names = itertools.count()


@contextlib.asynccontextmanager
async def local(model: object) -> AsyncIterator[EngineClient]:
    async with scripted_client(model, context_length=300) as client:
        yield client


@contextlib.asynccontextmanager
async def behind_a_socket(model: object) -> AsyncIterator[EngineClient]:
    """Front and engine in one process, with real frames between them."""
    address = f"inproc://contract-{next(_names)}"
    front = IpcClient(address)
    front.start()
    socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
    socket.connect(address)
    async with scripted_client(model, context_length=300) as engine:
        server = EngineServer(engine, socket.send)

        async def pump() -> None:
            while True:
                server.receive(frames.decode_call(await socket.recv()))

        pumping = asyncio.create_task(pump())
        server.emit(frames.Ready(engine.card, b""))
        await asyncio.wait_for(front.became_ready.wait(), 5)
        yield front
        pumping.cancel()
        await front.stop()
        socket.close(0)


Opening = Callable[[object], AbstractAsyncContextManager[EngineClient]]


@pytest.fixture(params=[local, behind_a_socket], ids=["local", "socket"])
def opening(request: pytest.FixtureRequest) -> Opening:
    return request.param


async def opened(client: EngineClient, text: str = "", **spec: object) -> BranchHandle:
    branch = await client.open(ProgramSpec(**spec))
    await client.extend(branch, [TextPiece(text)] if text else [])
    return branch


async def run(client: EngineClient, branch: BranchHandle, **spec: object) -> list[Event]:
    return [event async for event in client.generate(branch, GenerateSpec(sampling=GREEDY, **spec))]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


async def test_a_generation_stays_on_its_branch(opening: Opening) -> None:
    async with opening(REPLIES) as client:
        branch = await opened(client, "The capital of France is ")
        events = await run(client, branch)
        assert text_of(events) == "Paris" and isinstance(events[-1], Finished) and events[-1].reason == "stop"
        assert await client.text(branch) == "The capital of France is Paris"
        tokens = await client.tokens(branch)
        assert await client.detokenize(tokens) == "The capital of France is Paris"
        assert await client.tokenize("Paris") == tokens[-5:]


async def test_forks_go_their_own_ways(opening: Opening) -> None:
    async with opening(REPLIES) as client:
        parent = await opened(client, "Tell me: ")
        left, right = await client.fork(parent, 2)
        await client.extend(left, [TextPiece("capital of France? ")])
        await client.extend(right, [TokensPiece(list(b"capital of Italy? "))])
        found = await asyncio.gather(run(client, left), run(client, right))
        assert [text_of(events) for events in found] == ["Paris", "Rome"]
        assert await client.text(parent) == "Tell me: "


async def test_marks_roll_back_and_stale_ones_are_refused(opening: Opening) -> None:
    async with opening(REPLIES) as client:
        branch = await opened(client, "count: ")
        mark = await client.mark(branch)
        await run(client, branch)
        later = await client.mark(branch)
        await client.rollback(branch, mark)
        assert await client.text(branch) == "count: "
        with pytest.raises(BadRequest):
            await client.rollback(branch, later)


async def test_select_names_a_winner_with_probabilities(opening: Opening) -> None:
    async with opening(REPLIES) as client:
        branch = await opened(client, "capital of Italy: ")
        selection = await client.select(branch, ["Paris", "Rome"])
        assert selection.index == 1 and sum(selection.probabilities) == pytest.approx(1)
        assert await client.text(branch) == "capital of Italy: Rome"


async def test_chat_turns_close_themselves(opening: Opening) -> None:
    async with opening(REPLIES) as client:
        branch = await client.open(ProgramSpec())
        for country in ("France", "Italy"):
            ask = Message(role="user", content=f"capital of {country}?")
            await client.extend(branch, [MessagesPiece(messages=[ask], add_generation_prompt=True)])
            await run(client, branch)
        assert (await client.text(branch)).count("<|im_end|>") == 3


async def test_errors_keep_their_kind_and_their_field(opening: Opening) -> None:
    async with opening(REPLIES) as client:
        branch = await opened(client, "count")
        with pytest.raises(BadRequest) as bad:
            await run(client, branch, min_tokens=-1)
        assert (bad.value.status, bad.value.at) == (400, "$.min_tokens")
        with pytest.raises(ContextOverflow):
            await run(client, await opened(client, "x" * 400))
        with pytest.raises(TimedOut):
            await run(client, branch, timeout_s=1e-6)
        with pytest.raises(NotFound):
            await client.extend(BranchHandle("nobody", 0), [TextPiece("x")])
        assert text_of(await run(client, await opened(client, "count"))) == "one two three four"


async def test_leaving_early_aborts(opening: Opening) -> None:
    async with opening(None) as client:
        branch = await opened(client, "go")
        stream = client.generate(branch, GenerateSpec(ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        for _ in range(100):
            statistics = await client.statistics()
            if statistics.num_running == 0:
                break
            await asyncio.sleep(0.01)
        assert statistics.num_running == 0 and statistics.leased_pages == 0


async def test_closing_gives_the_bill(opening: Opening) -> None:
    async with opening(REPLIES) as client:
        branch = await opened(client, "count", tenant="someone")
        await client.gap(branch, "tool", "search", 2.0)
        await run(client, branch)
        child, *_ = await client.fork(branch, 1)
        usage = await client.close(child, program=True)
        assert usage.prompt_tokens == 5 and usage.completion_tokens == 19
        with pytest.raises(NotFound):
            await client.text(branch)
        assert (await client.statistics()).num_programs == 0
        assert await client.flush_cache() > 0
