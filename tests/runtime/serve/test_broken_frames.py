"""A frame that can't be read or written costs its own request, never the line: nobody waits for ever."""

import asyncio
from typing import Any

import msgspec
import pytest

from ramet.runtime.errors import BadRequest, EngineFailed, GrammarRefused
from ramet.runtime.serve import frames
from ramet.runtime.serve.engine_process import EngineServer
from ramet.runtime.serve.ipc_client import IpcClient
from ramet.runtime.types import Failed
from ramet.testing import scripted_client


async def answers_to(*sent: bytes, broken: str | None = None) -> list[frames.Answer]:
    """What the engine's end says to these frames."""
    out: list[frames.Answer] = []
    async with scripted_client("ok") as client:
        server = EngineServer(client, lambda frame: out.extend(frames.decode_answers(frame)))
        for frame in sent:
            server.receive_frame(frame)
        if broken is not None:
            refusal = GrammarRefused(expected="a name", got=1, at=broken)
            server.emit(frames.Refused(7, Failed(status=400, code="x", message="m", at=refusal.at)))
        for _ in range(200):
            await asyncio.sleep(0.01)
            if len(out) >= len(sent) + (broken is not None):
                break
    return out


async def test_a_call_that_cannot_be_read_is_refused_by_its_number() -> None:
    good = frames.encode(frames.Call(2, frames.Statistics()))
    first, second = await answers_to(msgspec.msgpack.encode(["c", 1, {"type": "no such verb"}]), good)
    assert isinstance(first, frames.Refused) and first.id == 1 and first.error.status == 400
    assert isinstance(second, frames.Value) and second.id == 2


async def test_an_answer_that_cannot_be_written_takes_no_other_with_it() -> None:
    good = frames.encode(frames.Call(2, frames.Tokenize("a", False, False)))
    found = {answer.id: answer for answer in await answers_to(good, broken="#/\ud800") if hasattr(answer, "id")}
    assert isinstance(found[2], frames.Value)
    refused = found[7]
    assert isinstance(refused, frames.Refused) and refused.error.status == 500


class Line:
    """A socket that has these frames to give, and then nothing."""

    def __init__(self, *received: bytes) -> None:
        self.received = list(received)

    async def recv(self) -> bytes:
        if not self.received:
            await asyncio.Event().wait()
        return self.received.pop(0)

    def send(self, frame: Any, copy: bool = True) -> None: ...


async def test_the_front_reads_on_behind_a_frame_that_it_cannot_read() -> None:
    client = IpcClient("ipc://nowhere")
    client._down = None
    line = Line(b"\xc1")
    client._socket = line  # type: ignore[assignment]
    first = asyncio.create_task(client.flush_cache())
    await asyncio.sleep(0)
    reader = asyncio.create_task(client._read(line))  # type: ignore[arg-type]
    with pytest.raises(EngineFailed):
        await asyncio.wait_for(first, 5)
    second = asyncio.create_task(client.flush_cache())
    await asyncio.sleep(0)
    client._deliver(frames.Value(2, msgspec.Raw(frames.encode(5))))
    assert await asyncio.wait_for(second, 5) == 5 and not reader.done()
    reader.cancel()


async def test_half_a_character_is_refused_before_it_is_sent() -> None:
    client = IpcClient("ipc://nowhere")
    client._down = None
    with pytest.raises(BadRequest):
        await client.tokenize("\ud800")
