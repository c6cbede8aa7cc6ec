"""S3 and S9: what an order does by itself, on a machine of slots without memory, batching or gaps.

The ranks are built from the scheduler's own parts (Gittins tables, service levels, virtual time); the machine around
them is `simulate/slots.py`.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from ramet.runtime.scheduler.fairshare import predicted_cost
from ramet.runtime.scheduler.gittins import FAVOUR, GittinsTable
from ramet.runtime.simulate.figure import Check, Figure, at_least, at_most, equal
from ramet.runtime.simulate.slots import Rank, Slack, SlotProgram, run_slots
from ramet.runtime.simulate.toy import toy_waits
from ramet.runtime.simulate.traces import tau_bench_turns, weka

SEEDS_ALLOW = 0.03
"""Of a mean: what the definition of S9 leaves to the choice of seeds."""
NUM_SESSIONS, LOAD, NUM_SLOTS, SEEDS = 1_500, 0.9, 4, tuple(range(12))


class Outcome(NamedTuple):
    """Completion times, mean over seeds."""

    mean: float
    p99: float
    largest: float


def s3(traces: Path | None = None) -> Figure:
    """Four programs of unit-step calls on two slots, all at once (figure 2 of Autellix)."""
    waits = toy_waits()
    checks = (
        equal("fcfs", waits["fcfs"], 18, 0),
        equal("plas", waits["plas"], 14, 0),
        equal("las_unit_quantum", waits["las_unit_quantum"], 13, 0),
        at_most("ours", waits["ours"], 12),
    )
    return Figure(name="S3", title="A toy of four programs: total wait, steps", values=waits, checks=checks)


def s9(traces: Path, seeds: Sequence[int] = SEEDS) -> Figure:
    coding = [len(session.main_rows) for session in weka(traces / "weka-claude-code" / "weka_compact.jsonl.gz")]
    airline = tau_bench_turns(traces / "tau-bench" / "gpt-4o-airline.json.gz")
    values, checks = {}, []
    for name, kinds in {
        "weka": {"coding": coding},
        "airline": {"airline": airline},
        "mix": {"coding": coding, "airline": airline},
    }.items():
        outcomes = _outcomes(kinds, seeds)
        for order, outcome in outcomes.items():
            values.update({f"{name}_{order}_{field}": value for field, value in outcome._asdict().items()})
        checks += _order_checks(name, outcomes)
    return Figure(
        name="S9",
        title="Which order: completion of sessions, s",
        values=values,
        checks=tuple(checks),
        notes=(
            f"{len(seeds)} seeds, common to all orders",
            "one seed moves a mean by 10 % and more, so the bars are ratios within the same seeds",
        ),
    )


def _outcomes(kinds: Mapping[str, Sequence[int]], seeds: Sequence[int]) -> dict[str, Outcome]:
    tables = {kind: GittinsTable(turns, favour=FAVOUR) for kind, turns in kinds.items()}

    def gittins(program: SlotProgram) -> tuple[float, ...]:
        return (-tables[program.kind].index(program.attained), program.arrived_s)

    fair = Slack(
        slack=lambda program: tables[program.kind].mean,
        cost=lambda program: predicted_cost(tables[program.kind].mean, program.attained),
    )
    orders: dict[str, tuple[Rank, Slack | None]] = {
        "program_fcfs": (lambda program: (program.arrived_s,), None),
        "plas": (lambda program: (program.attained, program.arrived_s), None),
        "gittins": (gittins, None),
        "gittins_fair": (gittins, fair),
        "srpt": (lambda program: (program.num_turns - program.attained, program.arrived_s), None),
    }
    return {name: _outcome(kinds, seeds, rank, slack) for name, (rank, slack) in orders.items()}


def _outcome(kinds: Mapping[str, Sequence[int]], seeds: Sequence[int], rank: Rank, fair: Slack | None) -> Outcome:
    runs = [run_slots(_arrivals(kinds, seed), rank, num_slots=NUM_SLOTS, fair=fair) for seed in seeds]
    over: Callable[[Callable[[list[float]], float]], float] = lambda f: fmean(f(run) for run in runs)  # noqa: E731
    return Outcome(over(fmean), over(lambda run: float(np.percentile(run, 99))), over(max))


def _arrivals(kinds: Mapping[str, Sequence[int]], seed: int) -> list[SlotProgram]:
    """Poisson, kinds by chance, half and half; the load is that of the mean turns of the trace."""
    source = random.Random(seed)
    drawn = [source.choice(list(kinds)) for _ in range(NUM_SESSIONS)] if len(kinds) > 1 else list(kinds) * NUM_SESSIONS
    turns = [source.choice(kinds[kind]) for kind in drawn]
    mean = fmean(fmean(each) for each in kinds.values())
    rate, now, programs = LOAD * NUM_SLOTS / mean, 0.0, []
    for kind, num_turns in zip(drawn, turns, strict=True):
        now += source.expovariate(rate)
        programs.append(SlotProgram(now, num_turns, kind))
    return programs


def _order_checks(name: str, outcomes: Mapping[str, Outcome]) -> list[Check]:
    better = min(outcomes["plas"].mean, outcomes["program_fcfs"].mean)
    gittins, fair = outcomes["gittins"], outcomes["gittins_fair"]
    checks = [
        at_most(f"{name}_gittins_over_better", gittins.mean / better, 0.95 if name == "mix" else 1.02),
        at_most(f"{name}_fair_mean_over_gittins", fair.mean / gittins.mean, 1.04 * (1.0 + SEEDS_ALLOW)),
        at_least(f"{name}_gittins_over_srpt", gittins.mean / outcomes["srpt"].mean, 1.0),
    ]
    if name != "airline":
        checks.append(at_most(f"{name}_fair_largest_over_gittins", fair.largest / gittins.largest, 0.5))
    return checks
