"""The executor's protocol: it works, in tensors or in simulated seconds, what the scheduler decided in ints."""

from collections.abc import Sequence
from typing import Protocol

from ramet.runtime.types import PageMove, StepPlan, StepResult


class Executor(Protocol):
    """LocalExecutor (torch), SimulatedExecutor (cost model), RecordingExecutor (tests)."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Copies, moves, forward, grammar, sampling: in this order. Errors of one row are values in its SampledRow."""
        ...

    def move(self, moves: Sequence[PageMove]) -> None:
        """Start moving pages between tiers, beside the compute. What leaves has been copied when this returns."""
        ...
