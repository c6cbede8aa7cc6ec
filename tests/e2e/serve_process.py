"""`ramet serve` as its users meet it: a process with a port. Started, watched, stopped."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    base: str
    process: "subprocess.Popen[str]"
    ready_s: float

    def metric(self, name: str) -> float:
        """One number of /metrics."""
        text = httpx.get(f"{self.base}/metrics", timeout=30).text
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.split()[0].split("{")[0] == name)

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


@contextlib.contextmanager
def serve(*arguments: str, within_s: float = 60) -> Iterator[Served]:
    """Start on a free port, wait until it is ready, stop by SIGTERM."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ramet", "serve", "--port", "0", "--log-level", "warning", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
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
