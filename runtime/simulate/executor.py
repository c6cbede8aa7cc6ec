"""The executor that computes nothing: it says what the trace said, after the time that the cost model says.

To replay hours in seconds it lets a decode step stand for several: the tokens that the trace has next come back as
drafts, the scheduler plans them like any drafts, all are accepted, and each is charged as a step of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ramet.runtime.types import PageMove, PlannedRow, SampledRow, StepPlan, StepResult


class StepCosts(Protocol):
    """Seconds: a roofline (`cost.py`), or what was measured (`measured.py`)."""

    def plan_s(self, plan: StepPlan, loaded: Mapping[int, int] = ...) -> float: ...
    def overhead_s(self, plan: StepPlan) -> float: ...


class SimulatedExecutor:
    """Behind the executor's protocol. Tell it with `expect` what a sequence will say before it is submitted."""

    def __init__(self, cost: StepCosts, *, num_drafts: int = 15, reads_shared_once: bool = True) -> None:
        """`num_drafts`         decode steps, less one, that a planned step may stand for
        `reads_shared_once`  False: each row reads its prefix for itself, whatever the plan groups"""
        self._cost, self._num_drafts, self._reads_shared_once = cost, num_drafts, reads_shared_once
        self._outputs: dict[int, tuple[int, Sequence[int]]] = {}
        self._loadable: dict[int, int] = {}
        self.busy_s = 0.0
        self.num_loaded = 0
        """Tokens that came from the host instead of being computed."""

    def expect(self, sequence_id: int, num_prompt: int, output: Sequence[int], loadable: int = 0) -> None:
        """The sequence answers its prompt of `num_prompt` tokens with `output`; the KV of its first `loadable` tokens
        has come from the host."""
        self._outputs[sequence_id] = (num_prompt, output)
        if loadable:
            self._loadable[sequence_id] = loadable

    def execute(self, plan: StepPlan) -> StepResult:
        for sequence_id in plan.ends:
            self._outputs.pop(sequence_id, None)
            self._loadable.pop(sequence_id, None)
        seconds = self._seconds(plan) if plan.rows else 0.0
        self.busy_s += seconds
        return StepResult([self._sampled(row) for row in plan.rows], seconds)

    def move(self, moves: Sequence[PageMove]) -> None:
        """Nothing is anywhere."""

    def overhead_s(self, plan: StepPlan) -> float:
        """What the loop itself needs beside a step."""
        return self._cost.overhead_s(plan) if plan.rows else 0.0

    def _seconds(self, plan: StepPlan) -> float:
        """Compute; what came from the host is not computed."""
        if not self._reads_shared_once:
            plan = plan._replace(groups=())
        if not self._loadable:
            return self._cost.plan_s(plan)
        loaded = {row.sequence_id: num for row in plan.rows if (num := self._num_loaded(row))}
        self.num_loaded += sum(loaded.values())
        return self._cost.plan_s(plan, loaded)

    def _num_loaded(self, row: PlannedRow) -> int:
        loadable = self._loadable.get(row.sequence_id, 0)
        return max(0, min(loadable, row.start + len(row.tokens)) - row.start)

    def _sampled(self, row: PlannedRow) -> SampledRow:
        if row.num_sampled == 0:
            return SampledRow(row.sequence_id, ())
        num_prompt, output = self._outputs[row.sequence_id]
        end = row.start + len(row.tokens) + 1 - num_prompt  # of the output, after this step
        tokens = output[end - row.num_sampled : end]
        return SampledRow(row.sequence_id, tokens, forced=output[end : end + self._num_drafts])
