"""S14: a gang of branches over one prefix, planned by the real scheduler: what a step reads, what the join costs."""

from pathlib import Path
from typing import NamedTuple

from ramet.runtime.simulate.cost import CostModel, named_cost, shared_reads
from ramet.runtime.simulate.executor import SimulatedExecutor
from ramet.runtime.simulate.figure import Check, Figure, at_most, equal
from ramet.runtime.simulate.policies import BASELINES, MachineConfig, build_runner
from ramet.runtime.simulate.workload import Gap, Session, Turn
from ramet.runtime.types import StepPlan, StepResult

SUFFIX_TOKENS = 256
EXPECTED = {(8, 4_096): 0.1765, (8, 32_768): 0.1318, (32, 4_096): 0.0882, (32, 32_768): 0.0388}
"""(branches, shared context) -> KV tokens read in a step, grouped / each row for itself."""


class Gang(NamedTuple):
    """One fork and its join."""

    read_ratio: float
    """At the last step in which all branches run."""
    join_s: float
    num_computed: int
    """Prompt tokens that all branches together computed."""


class _Watching(SimulatedExecutor):
    """Notes what the widest step reads."""

    def __init__(self, cost: CostModel) -> None:
        super().__init__(cost, num_drafts=0)
        self.widest = (0, 0, 1.0)

    def execute(self, plan: StepPlan) -> StepResult:
        tokens = sum(row.start + len(row.tokens) for row in plan.rows)
        if tokens:
            ratio = (tokens - shared_reads(plan.groups)) / tokens
            self.widest = max(self.widest, (len(plan.rows), tokens, ratio))
        return super().execute(plan)


def run_gang(num_branches: int, context_tokens: int) -> Gang:
    """A prompt is computed once; then `num_branches` go on from it side by side, `SUFFIX_TOKENS` tokens each."""
    cost = named_cost("h200", "llama-3.1-8b")
    config = MachineConfig(cost=cost, pool_tokens=200_000, page_size=16, num_drafts=0)
    runner = build_runner(BASELINES["B7"], config)
    watching = _Watching(cost)
    runner.use_executor(watching)
    head = ("head", context_tokens)
    parent = Session(name="parent", turns=[Turn(0, 1, 1, Gap(1e9))], shared_prefix=head)
    start_s = 60.0
    branches = [
        Session(name=f"branch-{n}", turns=[Turn(0, 1, SUFFIX_TOKENS - 1, None)], shared_prefix=head, arrived_s=start_s)
        for n in range(num_branches)
    ]
    replay = runner.open_loop([parent, *branches], until_s=1e6)
    turns = [turn for turn in replay.turns if turn.session != "parent"]
    computed = sum(turn.prompt_tokens - turn.cached_tokens for turn in turns)
    return Gang(watching.widest[2], max(turn.ended_s for turn in turns) - start_s, computed)


def s14(traces: Path | None = None) -> Figure:
    values, checks = {}, list[Check]()
    for (num_branches, context), expected in EXPECTED.items():
        gang, alone = run_gang(num_branches, context), run_gang(1, context)
        key = f"n{num_branches}_c{context}"
        values[f"{key}_read_ratio"] = gang.read_ratio
        values[f"{key}_join_over_alone"] = gang.join_s / alone.join_s
        values[f"{key}_computed_tokens"] = gang.num_computed
        checks.append(equal(f"{key}_read_ratio", gang.read_ratio, expected, 0.01 * expected))
        checks.append(at_most(f"{key}_join_over_alone", gang.join_s / alone.join_s, 1.15))
    return Figure(
        name="S14",
        title="A fork gang: KV tokens per step, grouped / ungrouped; join / longest branch alone",
        values=values,
        checks=tuple(checks),
        notes=("plans of the real scheduler with its row groups; h200, llama-3.1-8b; branches of 256 tokens",),
    )
