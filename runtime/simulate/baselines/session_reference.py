"""B2: what no session will read goes first, then what few will, then by age. Rule of SGLang's session references."""

import math
from typing import ClassVar

from ramet.radix.node import Node

_PER_READER = 1e9
"""Seconds that one more reader weighs; no run is that long."""


class SessionReferences:
    """The eviction order (live reference, number of references, last use)."""

    name: ClassVar[str] = "session_reference"
    refresh_s: ClassVar[float] = math.inf

    def rank(self, node: Node, now: float) -> float:
        return _PER_READER * len(node.readers) + node.last_used
