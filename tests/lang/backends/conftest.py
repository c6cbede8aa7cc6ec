"""Two small HTTP servers on asyncio: one speaks the native program API for any client, one plays an OpenAI endpoint."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from ramet.lang.backends.scripted import ScriptedClient
from ramet.lang.loop import PROGRAMS
from ramet.runtime.errors import RametError
from ramet.runtime.failures import to_failed
from ramet.runtime.program_wire import ExtendBody, GapBody, SelectBody
from ramet.runtime.types import BranchHandle, GenerateSpec, Mark, ProgramSpec

Handler = Callable[[str, str, bytes], Awaitable[Any]]
"""(method, path, body) -> an object (JSON), or an async iterator of SSE data."""


class Server:
    """Serves a handler on a free port, on the programs' loop; counts connections."""

    def __init__(self, handler: Handler, *, keep_alive: bool = True) -> None:
        self.handler, self.keep_alive = handler, keep_alive
        self.num_connections = 0
        self.num_broken = 0
        self.writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def open_again_after(self, seconds: float) -> None:
        """Nobody answers for so long."""
        self.server.close()
        await self.server.wait_closed()

        async def later() -> None:
            await asyncio.sleep(seconds)
            self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

        self.opening = asyncio.create_task(later())

    async def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                lines = {k.lower(): v for k, _, v in (line.partition(": ") for line in head.split("\r\n")[1:])}
                body = await reader.readexactly(int(lines.get("content-length", 0)))
                await self._answer(writer, method, path, body)
                if not self.keep_alive:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.num_broken += 1
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, path: str, body: bytes) -> None:
        try:
            result = await self.handler(method, path, body)
        except RametError as error:
            content = {"error": {"message": str(error), "code": error.code, "param": error.at}}
            self._whole(writer, error.status, msgspec.json.encode(content))
            return
        if not hasattr(result, "__aiter__"):
            self._whole(writer, 200, msgspec.json.encode(result))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        async with aclosing(result) as events:
            async for data in events:
                self._chunk(writer, b": a comment\n\ndata: " + data + b"\n\n")
                await writer.drain()
                if writer.transport.is_closing():
                    raise ConnectionResetError
                await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    @staticmethod
    def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
        for part in (data[:3], data[3:]):  # cut anywhere: framing is not the reader's concern
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

    @staticmethod
    def _whole(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def native(client: ScriptedClient) -> Handler:
    """`/v1/programs` over any client: docs/dsl.md in forty lines."""

    async def handle(method: str, path: str, body: bytes) -> Any:
        parts = path.strip("/").split("/")[1:]
        if parts[0] == "engine":
            return await engine(parts[1], body)
        if parts == ["programs"]:
            handle = await client.open(msgspec.json.decode(body, type=ProgramSpec))
            return {"program_id": handle.program_id, "branch_id": handle.branch_id}
        branches = [h for h in client.branches if h.program_id == parts[1]]
        if len(parts) == 2:
            return await client.close(branches[0], program=True)
        branch = BranchHandle(parts[1], int(parts[3]))
        if len(parts) == 4:
            return await client.close(branch)
        return await verb(parts[4], branch, body)

    async def engine(name: str, body: bytes) -> Any:
        data = json.loads(body or b"{}")
        match name:
            case "card":
                return client.card
            case "statistics":
                return await client.statistics()
            case "flush_cache":
                return {"num_pages": await client.flush_cache()}
            case "tokenize":
                return {"tokens": await client.tokenize(**data)}
            case _:
                return {"text": await client.detokenize(**data)}

    async def verb(name: str, branch: BranchHandle, body: bytes) -> Any:
        match name:
            case "extend":
                return await client.extend(branch, msgspec.json.decode(body, type=ExtendBody).pieces)
            case "generate":
                return generate(branch, msgspec.json.decode(body, type=GenerateSpec))
            case "select":
                return await client.select(branch, **msgspec.structs.asdict(msgspec.json.decode(body, type=SelectBody)))
            case "fork":
                forked = await client.fork(branch, json.loads(body)["n"])
                return {"branch_ids": [handle.branch_id for handle in forked]}
            case "mark":
                return (await client.mark(branch))._asdict()
            case "rollback":
                return await client.rollback(branch, Mark(**json.loads(body)))
            case "gap":
                return await client.gap(branch, **msgspec.structs.asdict(msgspec.json.decode(body, type=GapBody)))
            case "tokens":
                return {"tokens": await client.tokens(branch)}
            case _:
                return {"text": await client.text(branch)}

    async def generate(branch: BranchHandle, spec: GenerateSpec) -> AsyncIterator[bytes]:
        try:
            async with aclosing(client.generate(branch, spec)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield msgspec.json.encode(event)
        except RametError as error:
            yield msgspec.json.encode(to_failed(error))

    return handle


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """`serve(handler)` starts a server; all stop when the test ends."""
    servers: list[Server] = []

    def start(handler: Handler, **options: Any) -> Server:
        server = Server(handler, **options)
        PROGRAMS.start(server.start()).result(5)
        servers.append(server)
        return server

    yield start
    for server in servers:
        PROGRAMS.start(server.stop()).result(5)


@pytest.fixture
def native_handler() -> Callable[[ScriptedClient], Handler]:
    return native
