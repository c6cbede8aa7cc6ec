"""What the report always says: every baseline, every part of ours switched off, the negative cases, and what deciding
costs. Rows of numbers; few bars."""

import itertools
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, median

from ramet.runtime.scheduler.programs import ProgramTable
from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.figure import Figure, at_most
from ramet.runtime.simulate.figures.agents import load_point, machine
from ramet.runtime.simulate.gaps import tool_calls
from ramet.runtime.simulate.policies import BASELINES, MachineConfig, build_runner
from ramet.runtime.simulate.sources import open_sessions
from ramet.runtime.simulate.summary import summary
from ramet.runtime.simulate.traces import Session as RecordedSession
from ramet.runtime.simulate.traces import weka
from ramet.runtime.simulate.workload import Gap, Session, Turn, coding_sessions
from ramet.runtime.types import ProgramSpec

ABLATIONS = ("gittins-no-retention", "gittins-no-admission", "gittins-no-order")


def baselines(traces: Path, *, load: int = 72, seed: int = 0, until_s: float = 600.0) -> Figure:
    """Every baseline and every ablation on the load of S6 that hurts most, with the gap to the oracle."""
    recorded = _recorded(traces)
    rows = {f"{key} {policy}": policy for key, policy in BASELINES.items()} | {name: name for name in ABLATIONS}
    points = {row: load_point(policy, load, seed, recorded, until_s) for row, policy in rows.items()}
    values = {f"{row}: hit": point.hit for row, point in points.items()}
    values.update({f"{row}: turns_per_min": point.turns_per_min for row, point in points.items()})
    ours, oracle = points["B7 gittins"], points["B8 oracle"]
    values["gap_to_oracle_hit"] = oracle.hit - ours.hit
    notes = (
        f"closed loop of {load} coding sessions, {until_s:g} s, seed {seed}",
        "B2 and B4 to B6 are rules of published systems, as far as they are published",
        "ours without the fork gang and the splice is not shown: these sessions have neither forks nor echoed outputs",
    )
    return Figure(name="baselines", title="All baselines and ablations on S6", values=values, notes=notes)


def negative(traces: Path, *, num_requests: int = 2_000) -> Figure:
    """Where ours can't win, and must not lose."""
    azure = open_sessions(traces / "azure2023" / "AzureLLMInferenceTrace_conv.csv", limit=num_requests)
    cases: dict[str, Callable[[str], float]] = {
        "no_sharing_completion_s": lambda policy: _completion(policy, azure, 400_000),
        "short_gaps_turns_per_min": lambda policy: _short_gaps(policy, traces),
        "wrong_hints_10x_turns_per_min": lambda policy: _wrong_hints(policy, traces, 10.0),
        "wrong_hints_tenth_turns_per_min": lambda policy: _wrong_hints(policy, traces, 0.1),
        "tiny_forks_completion_s": lambda policy: _completion(policy, _tiny_forks(), 40_000),
        "edited_history_turns_per_min": lambda policy: _edited(policy, traces),
    }
    values = {f"{case}_{policy}": run(policy) for case, run in cases.items() for policy in ("fcfs", "gittins")}
    huge = [Session(name="huge", turns=[Turn(0, 50_000, 10, Gap(1.0)), Turn(50_000, 10, 10, None)])]
    refused = build_runner("gittins", machine(40_000)).open_loop([*huge, *_tiny_forks()])
    values["larger_than_memory_refused"] = refused.num_refused
    overhead = values["no_sharing_completion_s_gittins"] / values["no_sharing_completion_s_fcfs"]
    checks = (
        at_most("no_sharing_completion_over_fcfs", overhead, 1.01),
        at_most(
            "tiny_forks_over_fcfs",
            values["tiny_forks_completion_s_gittins"] / values["tiny_forks_completion_s_fcfs"],
            1.1,
        ),
        at_most("larger_than_memory_livelock", float(len(refused.sessions) != 65), 0.0),
    )
    return Figure(name="negative", title="Negative cases: ours beside FCFS + LRU", values=values, checks=checks)


def overhead(traces: Path | None = None, *, num_programs: int = 1_000, until_s: float = 30.0) -> Figure:
    """What deciding costs: schedule() and commit() of a step with 1,000 live programs and 10,000 nodes."""
    values = {}
    for policy in ("fcfs", "gittins"):
        times, num_nodes = _decision_times(policy, num_programs, until_s)
        values[f"{policy}_ms_per_step_median"] = 1e3 * median(times)
        values[f"{policy}_ms_per_step_mean"] = 1e3 * fmean(times)
        values[f"{policy}_nodes"] = num_nodes
    values["program_table_mb_per_1000"] = _table_megabytes(num_programs) * 1000 / num_programs
    added = values["gittins_ms_per_step_mean"] - values["fcfs_ms_per_step_mean"]
    checks = (
        at_most("gittins_ms_per_step_median", values["gittins_ms_per_step_median"], 1.0),
        at_most("programs_add_ms_per_step_mean", added, 1.0),
        at_most("program_table_mb_per_1000", values["program_table_mb_per_1000"], 10.0),
    )
    notes = ("wall time of the whole scheduler for steps of up to 64 rows, on whatever machine this is; no drafts",)
    return Figure(name="overhead", title="The cost of deciding", values=values, checks=checks, notes=notes)


def _completion(policy: str, sessions: Sequence[Session], pool_tokens: int) -> float:
    found = summary(build_runner(policy, machine(pool_tokens)).open_loop(sessions))
    return found["completion_s_mean"]


def _short_gaps(policy: str, traces: Path) -> float:
    """All gaps near a second: every rule of retention should say the same."""
    calls = itertools.cycle([0.7, 1.0, 1.4])
    source = (
        replace(session, turns=[turn._replace(gap=turn.gap and Gap(next(calls))) for turn in session.turns])
        for session in coding_sessions(_recorded(traces), seed=3)
    )
    replay = build_runner(policy, machine()).closed_loop(source, 24, 300.0)
    return summary(replay)["turns_per_min"]


def _wrong_hints(policy: str, traces: Path, factor: float) -> float:
    def hinted(turn: Turn) -> Turn:
        gap = turn.gap
        return turn if gap is None else turn._replace(gap=gap._replace(expected_s=gap.duration_s * factor))

    source = (
        replace(session, turns=[hinted(turn) for turn in session.turns])
        for session in coding_sessions(_recorded(traces), seed=3)
    )
    return summary(build_runner(policy, machine()).closed_loop(source, 48, 300.0))["turns_per_min"]


def _edited(policy: str, traces: Path) -> float:
    """Every turn rewrites the last tenth of its history."""

    def rewritten(turn: Turn) -> Turn:
        lost = turn.kept_tokens // 10
        return turn._replace(kept_tokens=turn.kept_tokens - lost, new_tokens=turn.new_tokens + lost)

    source = (
        replace(session, turns=[rewritten(turn) for turn in session.turns])
        for session in coding_sessions(_recorded(traces), seed=3)
    )
    return summary(build_runner(policy, machine()).closed_loop(source, 48, 300.0))["turns_per_min"]


def _tiny_forks() -> list[Session]:
    """64 branches of eight tokens over one prefix, under a full pool."""
    return [
        Session(name=f"fork-{n}", turns=[Turn(0, 8, 8, None)], shared_prefix=("head", 30_000), arrived_s=1.0)
        for n in range(64)
    ]


def _decision_times(policy: str, num_programs: int, until_s: float) -> tuple[list[float], int]:
    cost = named_cost("h200", "llama-3.1-8b")
    runner = build_runner(policy, MachineConfig(cost=cost, pool_tokens=1_500_000, page_size=16, num_drafts=0))
    times: list[float] = []
    runner.on_decision = times.append
    runner.open_loop(_many_programs(num_programs), until_s)
    return times, runner.num_nodes


def _many_programs(num_programs: int, num_turns: int = 60) -> list[Session]:
    gaps, sessions = tool_calls(1), []
    for number in range(num_programs):
        tokens, turns = 400 + number % 500, []
        for place in range(num_turns):
            kept, new = (0, tokens) if place == 0 else (tokens, 20 + (number + place) % 40)
            tokens = kept + new
            gap = Gap(max(0.5, next(gaps).duration_s), "tool", ("agent", str(number % 7)))
            turns.append(Turn(kept, new, 8 + (number * place) % 16, gap))
        head = (f"head-{number % 20}", 200)
        sessions.append(
            Session(name=f"p{number}", turns=turns, arrived_s=5.0 * number / num_programs, shared_prefix=head)
        )
    return sessions


def _table_megabytes(num_programs: int) -> float:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table = ProgramTable(1_000_000)
        for number in range(num_programs):
            table.open(ProgramSpec(program_id=f"program-{number}", workload="agent"), time.monotonic())
            table.queue(f"program-{number}", number, 0.0)
            table.end_turn(f"program-{number}", number, None, 100, 100)
            table.gap(f"program-{number}", "tool", 1.0, ("agent", "shell", f"word-{number % 50}"))
            table.estimator.learn(("agent", "shell", f"word-{number % 50}"), 1.0)
        return (tracemalloc.get_traced_memory()[0] - before) / 1e6
    finally:
        tracemalloc.stop()


@cache
def _recorded(traces: Path) -> tuple[RecordedSession, ...]:
    return tuple(weka(traces / "weka-claude-code" / "weka_compact.jsonl.gz"))
