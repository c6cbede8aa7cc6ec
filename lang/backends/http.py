"""A small HTTP/1.1 client on asyncio streams: JSON in, JSON or server-sent events out. Knows no API.

Connections are kept and reused; one that the server has closed in the meantime is opened anew, once. Closing a stream
early closes its connection, which is how a server learns that nobody reads any more.
"""

import asyncio
import ssl
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from ramet.lang.loop import PROGRAMS
from ramet.runtime.errors import BadRequest, Unavailable

JSON, OCTETS = "application/json", "application/octet-stream"
_MAX_IDLE = 64
_LINE_LIMIT = 1 << 24
"""Bytes of one line: an event with the logprobs of a long prompt is long."""


class Response(NamedTuple):
    """A whole answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    reused: bool


class HttpClient:
    """Requests to one server."""

    def __init__(self, base_url: str, *, headers: Mapping[str, str] = {}, verify: bool | str = True) -> None:
        """verify: False trusts any certificate; a path names the certificates to trust."""
        parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(expected="http://host:port or https://host", got=base_url, at="base_url")
        self.base_url = base_url
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._ssl = _context(verify) if parts.scheme == "https" else None
        self._headers = {"host": parts.netloc.rpartition("@")[2], "accept": "application/json", **headers}
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        weakref.finalize(self, _close_soon, self._idle)

    async def request(self, method: str, path: str, body: bytes | None = None, content_type: str = JSON) -> Response:
        """One exchange, read to the end."""
        connection, status, headers = await self._send(method, path, body, content_type)
        try:
            content = b"".join([part async for part in _content(connection.reader, headers)])
        except BaseException:
            connection.writer.close()
            raise
        self._give_back(connection, headers)
        return Response(status, headers, content)

    async def events(self, path: str, body: bytes) -> AsyncIterator[bytes]:
        """The `data:` of each server-sent event; `Refused` with the whole answer where the status is not 200."""
        connection, status, headers = await self._send("POST", path, body)
        whole = False
        try:
            if status != 200:
                content = b"".join([part async for part in _content(connection.reader, headers)])
                raise Refused(Response(status, headers, content))
            async for data in _data_lines(_content(connection.reader, headers)):
                yield data
            whole = True
        finally:
            if whole:
                self._give_back(connection, headers)
            else:
                connection.writer.close()

    async def _send(
        self, method: str, path: str, body: bytes | None, content_type: str = JSON
    ) -> tuple[_Connection, int, dict[str, str]]:
        while True:
            connection = await self._connection()
            try:
                connection.writer.write(self._head(method, path, body, content_type) + (body or b""))
                await connection.writer.drain()
                status, headers = await _read_head(connection.reader)
                return connection, status, headers
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                connection.writer.close()
                begun = isinstance(error, asyncio.IncompleteReadError) and error.partial
                if (
                    not connection.reused or begun
                ):  # an idle connection may have been closed: then, and only then, again
                    raise Unavailable(f"{self.base_url} closed the connection without an answer: {error}") from None
            except BaseException:
                connection.writer.close()
                raise

    def _head(self, method: str, path: str, body: bytes | None, content_type: str) -> bytes:
        headers = dict(self._headers)
        if body is not None:
            headers |= {"content-type": content_type, "content-length": str(len(body))}
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def _connection(self) -> _Connection:
        while self._idle:
            reader, writer = self._idle.pop()
            if not writer.is_closing() and not reader.at_eof():
                return _Connection(reader, writer, True)
            writer.close()
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=_LINE_LIMIT)
        except OSError as error:
            hint = "Is the server running? `ramet serve` starts one."
            raise Unavailable(f"nobody answers at {self.base_url}: {error}. {hint}") from None
        return _Connection(reader, writer, False)

    def _give_back(self, connection: _Connection, headers: Mapping[str, str]) -> None:
        if headers.get("connection", "").lower() == "close" or len(self._idle) >= _MAX_IDLE or _to_the_end(headers):
            connection.writer.close()
        else:
            self._idle.append((connection.reader, connection.writer))

    def close(self) -> None:
        """Close the idle connections. From any thread."""
        _close_soon(self._idle)


def _close_soon(idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Their transports belong to the programs' loop."""
    PROGRAMS.loop.call_soon_threadsafe(_close_all, idle)


def _close_all(idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    while idle:
        idle.pop()[1].close()


class Refused(Exception):
    """A stream that was answered with something else."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def _context(verify: bool | str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers; answers with 1xx are skipped."""
    while True:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ", 2)[1])
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if status >= 200:
            return status, headers


def _to_the_end(headers: Mapping[str, str]) -> bool:
    """The body ends with the connection."""
    return "content-length" not in headers and headers.get("transfer-encoding", "").lower() != "chunked"


async def _content(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body, piece by piece, as its framing says."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
            pass
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(1 << 16):
            yield part


async def _data_lines(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event; lines of one event are joined, comments and names skipped."""
    rest, data = b"", list[bytes]()
    async for part in content:
        *lines, rest = (rest + part).split(b"\n")
        for line in (line.removesuffix(b"\r") for line in lines):
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
    if data:
        yield b"\n".join(data)
