"""A process that keeps one core busy on demand, and how busy everyone else is: what a step is measured beside.

with Spinner() as spinner:
    with spinner.spinning(): ...
spinner.cores_of_others()       since it started, less this process and the spinner; NaN where there is no /proc
"""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self


class Spinner:
    """Starts stopped."""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self.process.send_signal(signal.SIGSTOP)
        self._began, self._ours, self._all = time.perf_counter(), time.process_time(), _busy_seconds()
        self._spun = self._spinner_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @contextmanager
    def spinning(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGCONT)
        time.sleep(0.2)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)

    def cores_of_others(self) -> float:
        """Cores that other processes kept busy on average. Call it before the spinner ends."""
        wall = time.perf_counter() - self._began
        mine = time.process_time() - self._ours + self._spinner_seconds() - self._spun
        return max(0.0, (_busy_seconds() - self._all - mine) / wall)

    def _spinner_seconds(self) -> float:
        fields = _read(f"/proc/{self.process.pid}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _ticks() if fields else math.nan


class Others:
    """Since it was made: how busy everybody but this process was."""

    def __init__(self) -> None:
        self._began, self._ours, self._all = time.perf_counter(), time.process_time(), _busy_seconds()

    def cores(self) -> float:
        """Cores that they kept busy on average; NaN where there is no /proc."""
        mine = time.process_time() - self._ours
        return max(0.0, (_busy_seconds() - self._all - mine) / (time.perf_counter() - self._began))


def _busy_seconds() -> float:
    """CPU seconds of all cores since the machine started, but for idling and waiting for disks."""
    fields = [int(field) for field in _read("/proc/stat").split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _ticks() if fields else math.nan


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
