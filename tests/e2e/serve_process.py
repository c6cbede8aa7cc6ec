"""`ramet serve` as its users meet it: a process with a port. Started, watched, stopped."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    base: str
    process: "subprocess.Popen[str]"
    ready_s: float

    def metric(self, name: str) -> float:
        """One number of /metrics: of one label where the name has it, of all together otherwise."""
        text = httpx.get(f"{self.base}/metrics", timeout=30).text
        pairs = [line.rsplit(" ", 1) for line in text.splitlines()]
        return sum(float(value) for found, value in pairs if name in (found, found.split("{")[0]))

    def open_files(self) -> int:
        """Descriptors of both processes."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (self.process.pid, self.engine_pid()))

    def engine_pid(self) -> int:
        """Process id of the engine, the front's one child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def wait_for(self, name: str, value: float, within_s: float = 20) -> None:
        """Until a metric has this value."""
        end = time.monotonic() + within_s
        while (found := self.metric(name)) != value:
            assert time.monotonic() < end, f"{name} is {found}, expected {value} within {within_s} s"
            time.sleep(0.1)


@contextlib.asynccontextmanager
async def departing(
    base: str, body: dict[str, Any]
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A chat request on a connection of its own, sent whole; the client vanishes where the block ends."""
    host, port = base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@contextlib.contextmanager
def serve(*arguments: str, within_s: float = 60, environment: Mapping[str, str] = {}) -> Iterator[Served]:
    """Start on a free port, wait until it is ready, stop by SIGTERM."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ramet", "serve", "--port", "0", "--log-level", "warning", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        start_new_session=True,  # as a shell gives each command a group of its own
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " ready in " in line, f"expected the ready line within {within_s} s, got {line!r}"
        yield Served(line.split(" at ")[1].strip(), process, time.monotonic() - began)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
