"""What time it is, for whoever decides. A leaf: everything that depends on time is given one of these."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never go back. Their zero means nothing."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()
