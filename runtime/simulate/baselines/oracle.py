"""B8: evict what is needed last. Knows the future: a ceiling, and no policy."""

import math
from collections.abc import Mapping
from typing import ClassVar

from ramet.radix.node import Node
from ramet.runtime.scheduler.programs import program_of


class FarthestNextUse:
    """The eviction order. `returns_at`: program -> when its next turn comes, which the runner writes."""

    name: ClassVar[str] = "belady"
    refresh_s: ClassVar[float] = math.inf

    def __init__(self, returns_at: Mapping[str, float]) -> None:
        self._returns_at = returns_at

    def rank(self, node: Node, now: float) -> float:
        return -min((self._returns_at.get(program_of(reader), math.inf) for reader in node.readers), default=math.inf)
