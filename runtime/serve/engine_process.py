"""The engine's process: builds the engine, then answers the front's calls until the front goes away.

`python -m ramet.runtime.serve.engine_process ADDRESS SETTINGS`, started by the supervisor. Answers of one turn of the
event loop leave as one frame. A dead front ends this process: no orphan keeps the memory.
"""

import asyncio
import gc
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from ramet.runtime.client import EngineClient, KeepsPrograms
from ramet.runtime.errors import BadRequest, EngineFailed, NotBuilt, RametError
from ramet.runtime.failures import to_failed
from ramet.runtime.serve import frames
from ramet.runtime.types import Event

log = logging.getLogger("ramet.engine")


class EngineServer:
    """Answers calls with an EngineClient that lives in this process."""

    def __init__(self, client: EngineClient, send: Callable[[bytes], Any]) -> None:
        self.client = client
        self._send = send
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._outgoing: list[frames.Answer] = []

    def receive_frame(self, frame: bytes) -> None:
        """A call as it comes; one that can't be read is refused by its number, and the next is served."""
        try:
            self.receive(frames.decode_call(frame))
        except msgspec.DecodeError as error:
            log.exception("a call could not be read")
            number = msgspec.msgpack.decode(frame)[1]
            bad = BadRequest(expected="values that the engine can read", got=str(error), at="$")
            self.emit(frames.Refused(number, to_failed(bad)))

    def receive(self, call: frames.Call) -> None:
        """Start one call; abort is the only one that needs no task."""
        if isinstance(call.verb, frames.Abort):
            if (task := self._tasks.get(call.verb.call)) is not None:
                task.cancel()
            return
        task = asyncio.create_task(self._answer(call))
        self._tasks[call.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(call.id, None))

    async def _answer(self, call: frames.Call) -> None:
        try:
            if isinstance(call.verb, frames.Generate):
                await self._stream(call.id, self.client.generate(call.verb.branch, call.verb.spec))
            elif isinstance(call.verb, frames.Resume):
                await self._stream(call.id, self._keeper.resume(call.verb.branch))
            else:
                value = await self._perform(call.verb)
                self.emit(frames.Value(call.id, msgspec.Raw(frames.encode(value))))
        except RametError as error:
            self.emit(frames.Refused(call.id, to_failed(error)))
        except Exception:
            log.exception("call %s failed", type(call.verb).__name__)
            broken = EngineFailed("the engine met an error of its own; the server's log has the details")
            self.emit(frames.Refused(call.id, to_failed(broken)))

    async def _stream(self, call: int, events: AsyncIterator[Event]) -> None:
        try:
            async for event in events:
                self.emit(frames.Emitted(call, event))
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    async def _perform(self, verb: frames.Verb) -> object:
        client = self.client
        match verb:
            case frames.Open():
                return await client.open(verb.program)
            case frames.Extend():
                await client.extend(verb.branch, verb.pieces)
            case frames.Select():
                choice = (verb.choices, verb.method, verb.temperature, verb.seed, verb.append)
                return await client.select(verb.branch, *choice)
            case frames.Fork():
                return await client.fork(verb.branch, verb.n)
            case frames.TakeMark():
                return await client.mark(verb.branch)
            case frames.Rollback():
                await client.rollback(verb.branch, verb.mark)
            case frames.Gap():
                await client.gap(verb.branch, verb.kind, verb.tool, verb.expected_s)
            case frames.Close():
                return await client.close(verb.branch, program=verb.program)
            case frames.TokensOf():
                return await client.tokens(verb.branch)
            case frames.TextOf():
                return await client.text(verb.branch)
            case frames.Tokenize():
                return await client.tokenize(verb.text, allow_special=verb.allow_special, add_bos=verb.add_bos)
            case frames.Detokenize():
                return await client.detokenize(verb.tokens, skip_special=verb.skip_special)
            case frames.Statistics():
                return await client.statistics()
            case frames.FlushCache():
                return await client.flush_cache()
            case frames.Checkpoint():
                return await self._keeper.checkpoint(verb.program_id)
            case frames.Restore():
                return await self._keeper.restore(verb.program)
            case _:
                raise EngineFailed(f"the engine knows no verb {type(verb).__name__}")
        return None

    @property
    def _keeper(self) -> KeepsPrograms:
        if not isinstance(self.client, KeepsPrograms):
            raise NotBuilt(f"a checkpoint on {type(self.client).__name__}")
        return self.client

    def emit(self, answer: frames.Answer) -> None:
        """Queue an answer; what one turn of the loop produced goes out together."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(answer)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        try:
            self._send(frames.encode(outgoing))
        except (ValueError, OverflowError, TypeError):  # half of a surrogate pair, say: one answer must not cost others
            for answer in outgoing:
                self._send(_encoded_alone(answer))


def _encoded_alone(answer: frames.Answer) -> bytes:
    """A frame of one answer, or of the word that it can't be sent."""
    try:
        return frames.encode([answer])
    except (ValueError, OverflowError, TypeError):
        log.exception("an answer could not be encoded: %s", type(answer).__name__)
        assert isinstance(answer, frames.Value | frames.Emitted | frames.Refused)
        failed = to_failed(EngineFailed("the engine's answer could not be encoded; the server's log has the details"))
        return frames.encode([frames.Refused(answer.id, failed)])


async def serve(address: str, settings: dict[str, Any]) -> None:
    """Build, say ready, answer until the front is gone."""
    socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
    for option in (zmq.SNDHWM, zmq.RCVHWM):
        socket.setsockopt(option, 0)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.connect(address)
    watch = asyncio.create_task(_end_with_parent(os.getppid()))
    try:
        client, stop, tokenizer = await asyncio.to_thread(_build, settings, _progress_sender(socket))
    except RametError as error:
        await socket.send(frames.encode([frames.Crashed(str(error))]))
        raise SystemExit(3) from None
    gc.collect()
    gc.freeze()  # what was loaded stays: a later collection need not walk it while streams wait
    server = EngineServer(client, socket.send)
    server.emit(frames.Ready(client.card, tokenizer))
    try:
        while True:
            server.receive_frame(await socket.recv())
    finally:
        watch.cancel()
        stop()


Built = tuple[EngineClient, Callable[[], None], bytes]


def _build(settings: dict[str, Any], progress: Callable[[int, int], None]) -> Built:
    factory = settings.pop("factory", None)
    if factory is not None:  # tests serve a scripted model: "module:function" -> the same triple
        module, _, name = factory.partition(":")
        return getattr(__import__(module, fromlist=[name]), name)(**settings)  # type: ignore[no-any-return]
    from ramet.runtime.build import build_engine
    from ramet.runtime.tokenizer import Tokenizer

    client = build_engine(progress=progress, compile_limits=True, **settings)
    assert isinstance(client.codec, Tokenizer)
    return client, client.stop, client.codec.to_bytes()


def _progress_sender(socket: zmq.asyncio.Socket) -> Callable[[int, int], None]:
    loop = asyncio.get_running_loop()

    def tell(done: int, total: int) -> None:
        loop.call_soon_threadsafe(socket.send, frames.encode([frames.Loading(done, total)]))

    return tell


async def _end_with_parent(parent: int) -> None:
    """A front that was killed can't say goodbye; its engine must not outlive it."""
    while os.getppid() == parent:
        await asyncio.sleep(1)
    os._exit(0)


def main() -> None:
    """Entry of the process."""
    logging.basicConfig(level=os.environ.get("RAMET_LOG", "INFO").upper(), format="%(asctime)s %(name)s %(message)s")
    address, settings = sys.argv[1], json.loads(sys.argv[2])
    asyncio.run(serve(address, settings))


if __name__ == "__main__":
    main()
