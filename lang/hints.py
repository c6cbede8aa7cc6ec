"""What a program can tell the scheduler ahead: its class, and how long a tool will take. Stdlib only; no engine.

Hints change order and retention, never results. The estimate of a gap is the median of the last runs of that tool in
this process; the engine has its own estimators and trusts them more as they learn.
"""

import hashlib
import statistics
import threading
from collections import defaultdict, deque

_REMEMBERED = 32


class GapEstimates:
    """Tool -> seconds, from the last runs."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._lock = threading.Lock()

    def record(self, tool: str, elapsed_s: float) -> None:
        with self._lock:
            self._seconds[tool].append(elapsed_s)

    def expected_s(self, tool: str) -> float | None:
        """None: never seen."""
        with self._lock:
            seen = self._seconds.get(tool)
            return statistics.median(seen) if seen else None


GAPS = GapEstimates()


def workload(module: str, name: str) -> str:
    """The class of a program for the scheduler's estimators: programs of one function behave alike."""
    return hashlib.blake2s(f"{module}.{name}".encode(), digest_size=8).hexdigest()
