"""EngineClient over a socket: the front's end of the process split.

Every call has an id; a reader task hands each answer to the call that waits for it. When the engine dies, all that
wait are told at once, and nothing waits for ever.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import msgspec
import zmq
import zmq.asyncio

from ramet.runtime.checkpoint import SavedProgram
from ramet.runtime.errors import BadRequest, EngineFailed, RametError, Unavailable
from ramet.runtime.failures import to_error
from ramet.runtime.serve import frames
from ramet.runtime.types import (
    BranchHandle,
    EngineStatistics,
    Event,
    Failed,
    Finished,
    GapKind,
    GenerateSpec,
    Mark,
    ModelCard,
    Piece,
    ProgramSpec,
    Selection,
    SelectMethod,
    Usage,
)

T = TypeVar("T")

log = logging.getLogger("ramet.serve")


def _encoded(call: frames.Call) -> bytes:
    """The frame; JSON knows larger integers than a frame (or a token id, or a seed) can hold."""
    try:
        return frames.encode(call)
    except OverflowError:
        raise BadRequest(expected="integers of at most 64 bits", got="a larger one", at="$") from None
    except UnicodeEncodeError:
        raise BadRequest(expected="text of whole characters", got="half of a surrogate pair", at="$") from None


class IpcClient:
    """The verbs of EngineClient, each one frame out and one or more back."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes] | asyncio.Queue[Event | RametError]] = {}
        self._socket: zmq.asyncio.Socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._down: RametError | None = Unavailable("the engine is loading", retry_after_s=2)
        self._card: ModelCard | None = None
        self.tokenizer: bytes = b""
        self.loading = frames.Loading(0, 0)
        self.crash: str | None = None
        self.became_ready = asyncio.Event()

    @property
    def card(self) -> ModelCard:
        if self._card is None:
            raise self._down or Unavailable("the engine is loading", retry_after_s=2)
        return self._card

    @property
    def is_ready(self) -> bool:
        return self._down is None

    def start(self) -> None:
        """Listen for the engine, which connects when it lives."""
        self._socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(self.address)
        self._reader = asyncio.create_task(self._read(self._socket), name="engine answers")

    async def stop(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        self.fail(Unavailable("the server is stopping"))

    def fail(self, error: RametError) -> None:
        """The engine is gone: everything that waits gets this error, and so does every new call until it is back."""
        self._down = error
        self.became_ready.clear()
        self._fail_waiting(error)

    def _fail_waiting(self, error: RametError) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            if isinstance(waiter, asyncio.Queue):
                waiter.put_nowait(error)
            elif not waiter.done():
                waiter.set_exception(error)

    @property
    def num_waiting(self) -> int:
        """Calls in flight."""
        return len(self._waiting)

    async def open(self, program: ProgramSpec) -> BranchHandle:
        return await self._ask(frames.Open(program), BranchHandle)

    async def extend(self, branch: BranchHandle, pieces: Sequence[Piece]) -> None:
        await self._ask(frames.Extend(branch, list(pieces)), type(None))

    def generate(self, branch: BranchHandle, spec: GenerateSpec) -> AsyncIterator[Event]:
        return self._events(frames.Generate(branch, spec))

    async def _events(self, verb: frames.Generate | frames.Resume) -> AsyncIterator[Event]:
        queue: asyncio.Queue[Event | RametError] = asyncio.Queue()
        call = await self._send(verb, queue)
        ended = False
        try:
            while not ended:
                event = await queue.get()
                if isinstance(event, RametError):
                    ended = True
                    raise event
                ended = isinstance(event, Finished | Failed)
                if isinstance(event, Failed):
                    raise to_error(event)
                yield event
        finally:
            self._waiting.pop(call, None)
            if not ended:
                self._send_nowait(frames.Call(next(self._ids), frames.Abort(call)))

    async def select(
        self,
        branch: BranchHandle,
        choices: Sequence[str],
        method: SelectMethod = "total",
        temperature: float = 0.0,
        seed: int | None = None,
        append: bool = True,
    ) -> Selection:
        verb = frames.Select(branch, list(choices), method, temperature, seed, append)
        return await self._ask(verb, Selection)

    async def fork(self, branch: BranchHandle, n: int) -> list[BranchHandle]:
        return await self._ask(frames.Fork(branch, n), list[BranchHandle])

    async def mark(self, branch: BranchHandle) -> Mark:
        return await self._ask(frames.TakeMark(branch), Mark)

    async def rollback(self, branch: BranchHandle, mark: Mark) -> None:
        await self._ask(frames.Rollback(branch, mark), type(None))

    async def gap(
        self, branch: BranchHandle, kind: GapKind, tool: str | None = None, expected_s: float | None = None
    ) -> None:
        await self._ask(frames.Gap(branch, kind, tool, expected_s), type(None))

    async def close(self, branch: BranchHandle, *, program: bool = False) -> Usage:
        return await self._ask(frames.Close(branch, program), Usage)

    def close_nowait(self, branch: BranchHandle, *, program: bool = False) -> None:
        """Close without waiting: for a handler that is itself being cancelled."""
        if self._down is None:
            self._send_nowait(frames.Call(next(self._ids), frames.Close(branch, program)))

    async def tokens(self, branch: BranchHandle) -> list[int]:
        return await self._ask(frames.TokensOf(branch), list[int])

    async def text(self, branch: BranchHandle) -> str:
        return await self._ask(frames.TextOf(branch), str)

    async def tokenize(self, text: str, *, allow_special: bool = False, add_bos: bool = False) -> list[int]:
        return await self._ask(frames.Tokenize(text, allow_special, add_bos), list[int])

    async def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        return await self._ask(frames.Detokenize(list(tokens), skip_special), str)

    async def statistics(self) -> EngineStatistics:
        return await self._ask(frames.Statistics(), EngineStatistics)

    async def flush_cache(self) -> int:
        return await self._ask(frames.FlushCache(), int)

    async def checkpoint(self, program_id: str) -> SavedProgram:
        return await self._ask(frames.Checkpoint(program_id), SavedProgram)

    async def restore(self, program: SavedProgram) -> list[BranchHandle]:
        return await self._ask(frames.Restore(program), list[BranchHandle])

    def resume(self, branch: BranchHandle) -> AsyncIterator[Event]:
        return self._events(frames.Resume(branch))

    async def _ask(self, verb: frames.Verb, kind: type[T]) -> T:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        call = await self._send(verb, future)
        try:
            raw = await future
        finally:
            self._waiting.pop(call, None)
        return msgspec.msgpack.decode(raw, type=kind)

    async def _send(self, verb: frames.Verb, waiter: asyncio.Future[bytes] | asyncio.Queue[Event | RametError]) -> int:
        if self._down is not None:
            raise self._down
        call = next(self._ids)
        frame = _encoded(frames.Call(call, verb))
        self._waiting[call] = waiter
        self._socket_send(frame)
        return call

    def _send_nowait(self, call: frames.Call) -> None:
        self._socket_send(frames.encode(call))

    def _socket_send(self, frame: bytes) -> None:
        assert self._socket is not None
        self._socket.send(frame, copy=False)

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frame = await socket.recv()
            try:
                for answer in frames.decode_answers(frame):
                    self._deliver(answer)
            except Exception:  # whoever waited for this frame must not wait for ever, and the next one is read as ever
                log.exception("an answer of the engine could not be read")
                self._fail_waiting(EngineFailed("an answer of the engine could not be read; the server's log has more"))

    def _deliver(self, answer: frames.Answer) -> None:
        match answer:
            case frames.Emitted(id=call, event=event):
                queue = self._waiting.get(call)
                if isinstance(queue, asyncio.Queue):
                    queue.put_nowait(event)
            case frames.Value(id=call, value=raw):
                future = self._waiting.get(call)
                if isinstance(future, asyncio.Future) and not future.done():
                    future.set_result(bytes(raw))
            case frames.Refused(id=call, error=failed):
                self._refuse(call, to_error(failed))
            case frames.Loading():
                self.loading = answer
            case frames.Ready(card=card, tokenizer=tokenizer):
                self._card, self.tokenizer, self._down = card, tokenizer, None
                self.became_ready.set()
            case frames.Crashed(message=message):
                self.crash = message
                self.fail(EngineFailed("the engine stopped; the server's log has the reason"))

    def _refuse(self, call: int, error: RametError) -> None:
        waiter = self._waiting.get(call)
        if isinstance(waiter, asyncio.Queue):
            waiter.put_nowait(error)
        elif waiter is not None and not waiter.done():
            waiter.set_exception(error)
