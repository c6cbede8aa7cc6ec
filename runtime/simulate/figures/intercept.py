"""S4: the ladder of InferCept, rung by rung, beside ours and every baseline: how much memory-time does no good.

A rung is a rule of the paper in this simulator, over the real scheduler and tree; the shares that the paper prints are
those of its own engine. What counts as waste is told in `simulate/waste.py`, and is the same for all.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.figure import Check, Figure, at_least, at_most
from ramet.runtime.simulate.policies import BASELINES, MachineConfig, build_runner
from ramet.runtime.simulate.synthetic import AUGMENTED_OUTPUT_SHARE, augmented_sessions
from ramet.runtime.simulate.waste import WasteMeter

LADDER = ("intercept-discard", "intercept-swap", "intercept-profiled", "intercept", "intercept-oracle")
PER_S, HOST_TOKENS, SEED = 2.0, 120_000, 2
EASIER_PER_S = 1.0
"""Where the rungs that swap are not saturated with our lengths."""
PUBLISHED = {"intercept-swap": 0.10, "intercept-profiled": 0.015, "intercept": 0.0069}
NEEDS_NO_HOST = frozenset({"intercept-discard"})


class Waste(NamedTuple):
    """Shares of the pool times the run's seconds, and what the programs felt."""

    wasted: float
    recomputed: float
    moved: float
    held_from_others: float
    held: float
    completion_s: float
    s_per_token: float
    """Completion less the time outside, over output tokens, mean over programs."""


def measure(policy: str, num_sessions: int, *, per_s: float = PER_S, host_tokens: int = HOST_TOKENS) -> Waste:
    cost = named_cost("a100", "llama-2-13b")
    tokens = 0 if policy in NEEDS_NO_HOST else host_tokens
    config = MachineConfig(
        cost=cost, pool_tokens=cost.pool_tokens, page_size=16, num_drafts=3, max_running=256, host_tokens=tokens
    )
    sessions = augmented_sessions(per_s, num_sessions, SEED)
    runner = build_runner(policy, config)
    meter = WasteMeter(runner.tree, cost)
    runner.watchers.append(meter)
    replay = runner.open_loop(sessions)
    whole = config.pool_tokens * replay.seconds
    outside = {s.name: sum(turn.gap.duration_s for turn in s.turns if turn.gap is not None) for s in sessions}
    output = {s.name: sum(turn.output_tokens for turn in s.turns) for s in sessions}
    done = replay.sessions
    return Waste(
        meter.wasted / whole,
        meter.recomputed / whole,
        meter.moved / whole,
        meter.held_from_others / whole,
        meter.held / whole,
        fmean(each.ended_s - each.started_s for each in done),
        fmean((each.ended_s - each.started_s - outside[each.name]) / output[each.name] for each in done),
    )


def s4(traces: Path | None = None, *, num_sessions: int = 200) -> Figure:
    found = {policy: measure(policy, num_sessions) for policy in (*LADDER, *BASELINES.values())}
    easier = {policy: measure(policy, num_sessions, per_s=EASIER_PER_S) for policy in (*LADDER, BASELINES["B7"])}
    values = _values(found, f"{PER_S:g}") | _values(easier, f"{EASIER_PER_S:g}")
    notes = (
        f"{num_sessions} programs, a100, llama-2-13b, {HOST_TOKENS:,} tokens of host but for discard",
        f"our guesses: the first prompt is half of the context, {AUGMENTED_OUTPUT_SHARE:.0%} of its growth is output",
        "a rung evicts what it holds where pages are short, and never locks; the paper's shares are of its own engine",
        "held memory is waste only beside a turn that waits: ours refuses new programs while it holds old ones",
    )
    return Figure(
        name="S4",
        title="InferCept's ladder: share of memory-time wasted",
        values=values,
        checks=tuple(_checks(found)),
        notes=notes,
    )


def _values(found: Mapping[str, Waste], rate: str) -> dict[str, float]:
    return {
        f"{policy}_{rate}: {field}": value for policy, each in found.items() for field, value in each._asdict().items()
    }


def _checks(found: Mapping[str, Waste]) -> Sequence[Check]:
    full, oracle, ours = (found[policy] for policy in ("intercept", "intercept-oracle", "gittins"))
    checks = [at_least("discard_wasted", found["intercept-discard"].wasted, 0.25)]
    checks += [at_most(f"{policy}_wasted", found[policy].wasted, share) for policy, share in PUBLISHED.items()]
    checks.append(at_least("elapsed_over_oracle", oracle.s_per_token / full.s_per_token, 0.93))
    checks.append(at_most("ours_wasted_over_full", ours.wasted / full.wasted, 1.0))
    checks.append(at_most("ours_completion_over_full", ours.completion_s / full.completion_s, 1.0))
    return checks
