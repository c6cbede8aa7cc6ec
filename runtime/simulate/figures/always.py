"""What the report always says: every baseline, the negative cases, and what deciding costs. Rows of numbers; few
bars."""

import itertools
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from ramet.runtime.scheduler.programs import ProgramTable
from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.figure import Figure, at_least, at_most
from ramet.runtime.simulate.figures.agents import load_point, machine, recorded
from ramet.runtime.simulate.gaps import tool_calls
from ramet.runtime.simulate.policies import BASELINES, MachineConfig, build_runner
from ramet.runtime.simulate.sources import open_sessions
from ramet.runtime.simulate.summary import summary
from ramet.runtime.simulate.workload import Gap, Session, Turn, coding_sessions
from ramet.runtime.types import ProgramSpec


def baselines(traces: Path, *, load: int = 72, seed: int = 0, until_s: float = 600.0) -> Figure:
    """Every baseline on the load of S6 that hurts most, with the gap to the oracle."""
    rows = {f"{key} {policy}": policy for key, policy in BASELINES.items()}
    points = {row: load_point(policy, load, seed, recorded(traces), until_s) for row, policy in rows.items()}
    values = {f"{row}: hit": point.hit for row, point in points.items()}
    values.update({f"{row}: turns_per_min": point.turns_per_min for row, point in points.items()})
    ours, oracle = points["B7 gittins"], points["B8 oracle"]
    values["gap_to_oracle_hit"] = oracle.hit - ours.hit
    notes = (
        f"closed loop of {load} coding sessions, {until_s:g} s, seed {seed}",
        "B2 and B4 to B6 are rules of published systems, as far as they are published",
    )
    return Figure(name="baselines", title="All baselines on S6", values=values, notes=notes)


RETENTIONS = ("fcfs", "session-reference", "min-waste", "ttl", "ttl-2s", "gittins")
"""Baselines that differ in what they keep: where all gaps last about a second, they should tie."""
UNADMITTED = ("fcfs", "lpm", "las", "program-fcfs", "gittins")
"""Orders. Of ours the admission is left out."""


def negative(traces: Path, *, num_requests: int = 2_000, until_s: float = 300.0) -> Figure:
    """Where ours can't win, and must not lose (section 3.4 of the design)."""
    azure = open_sessions(traces / "azure2023" / "AzureLLMInferenceTrace_conv.csv", limit=num_requests)
    loop = _ClosedLoop(traces, until_s)
    cases: dict[str, Callable[[str], float]] = {
        "no_sharing_completion_s": lambda policy: _completion(policy, azure, 400_000),
        "wrong_hints_10x_turns_per_min": lambda policy: loop.rate(policy, 48, _hinted(10.0)),
        "wrong_hints_tenth_turns_per_min": lambda policy: loop.rate(policy, 48, _hinted(0.1)),
        "right_hints_turns_per_min": lambda policy: loop.rate(policy, 48, _hinted(1.0)),
        "no_hints_turns_per_min": lambda policy: loop.rate(policy, 48, lambda session, number: session),
        "slower_tools_in_midrun_turns_per_min": lambda policy: loop.rate(policy, 48, _slower_from(60)),
        "false_joins_turns_per_min": lambda policy: loop.rate(policy, 48, _joined),
        "edited_history_turns_per_min": lambda policy: loop.rate(policy, 48, _edited),
        "tiny_forks_completion_s": lambda policy: _completion(policy, _tiny_forks(), 40_000),
    }
    values = {f"{case}_{policy}": run(policy) for case, run in cases.items() for policy in ("fcfs", "gittins")}
    values |= {f"short_gaps_turns_per_min_{policy}": loop.rate(policy, 24, _short_gaps()) for policy in RETENTIONS}
    values |= {f"unadmitted_96_hit_{policy}": loop.unadmitted_hit(policy) for policy in UNADMITTED}
    huge = [Session(name="huge", turns=[Turn(0, 50_000, 10, Gap(1.0)), Turn(50_000, 10, 10, None)])]
    refused = build_runner("gittins", machine(40_000)).open_loop([*huge, *_tiny_forks()])
    values["larger_than_memory_refused"] = refused.num_refused
    ties = [values[f"short_gaps_turns_per_min_{policy}"] for policy in RETENTIONS]

    def over(case: str, other: str) -> float:
        return values[case] / values[other]

    checks = (
        at_most("short_gaps_most_over_least", max(ties) / min(ties), 1.02),
        at_most(
            "no_sharing_completion_over_fcfs",
            over("no_sharing_completion_s_gittins", "no_sharing_completion_s_fcfs"),
            1.01,
        ),
        at_least(
            "false_joins_over_none", over("false_joins_turns_per_min_gittins", "no_hints_turns_per_min_gittins"), 0.95
        ),
        at_most("tiny_forks_over_fcfs", over("tiny_forks_completion_s_gittins", "tiny_forks_completion_s_fcfs"), 1.1),
        at_most("larger_than_memory_livelock", float(len(refused.sessions) != 65), 0.0),
    )
    notes = (
        f"closed loops of coding sessions, {until_s:g} s; short gaps: 24, which fit; unadmitted: 96, page counts only",
        "slower tools: ten times as slow from the 60th session on; false joins: every tenth pair is taken for one",
        "the other negative cases stand in S7 (fairness by size) and S9 (the largest under Gittins alone)",
    )
    return Figure(
        name="negative", title="Negative cases: ours beside FCFS + LRU", values=values, checks=checks, notes=notes
    )


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
    notes = ("CPU time of the whole scheduler for steps of up to 64 rows, on whatever machine this is; no drafts",)
    return Figure(name="overhead", title="The cost of deciding", values=values, checks=checks, notes=notes)


def _completion(policy: str, sessions: Sequence[Session], pool_tokens: int) -> float:
    found = summary(build_runner(policy, machine(pool_tokens)).open_loop(sessions))
    return found["completion_s_mean"]


Change = Callable[[Session, int], Session]
"""A session and its number in the run -> what is replayed."""


class _ClosedLoop:
    """Coding sessions as S6 has them, changed."""

    def __init__(self, traces: Path, until_s: float) -> None:
        self._traces, self._until_s = traces, until_s

    def rate(self, policy: str, num_live: int, change: Change) -> float:
        """Turns a minute."""
        source = coding_sessions(recorded(self._traces), seed=3)
        changed = (change(session, number) for number, session in enumerate(source))
        replay = build_runner(policy, machine()).closed_loop(changed, num_live, self._until_s)
        return summary(replay)["turns_per_min"]

    def unadmitted_hit(self, policy: str) -> float:
        """Of later turns: more sessions than memory, and nobody who bounds them."""
        without = frozenset({"admission"}) if policy == "gittins" else frozenset[str]()
        point = load_point(policy, 96, 3, recorded(self._traces), self._until_s, without)
        return point.hit


def _short_gaps() -> Change:
    """All gaps near a second: every rule of retention should say the same."""
    calls = itertools.cycle([0.7, 1.0, 1.4])
    return lambda session, number: _with_gaps(session, lambda gap: Gap(next(calls)))


def _hinted(factor: float) -> Change:
    return lambda session, number: _with_gaps(session, lambda gap: gap._replace(expected_s=gap.duration_s * factor))


def _slower_from(first: int) -> Change:
    """Tools take ten times as long for whoever comes from there on; their keys stay."""

    def slower(session: Session, number: int) -> Session:
        if number < first:
            return session
        return _with_gaps(session, lambda gap: gap._replace(duration_s=10.0 * gap.duration_s))

    return slower


def _joined(session: Session, number: int) -> Session:
    """Of every twenty sessions two are taken for one program, as equal tails would have it."""
    if number % 20 >= 2:
        return session
    return replace(session, name=f"joined-{number // 20}/{session.name}")


def _edited(session: Session, number: int) -> Session:
    """Every turn rewrites the last tenth of its history."""

    def rewritten(turn: Turn) -> Turn:
        lost = turn.kept_tokens // 10
        return turn._replace(kept_tokens=turn.kept_tokens - lost, new_tokens=turn.new_tokens + lost)

    return replace(session, turns=[rewritten(turn) for turn in session.turns])


def _with_gaps(session: Session, change: Callable[[Gap], Gap]) -> Session:
    return replace(session, turns=[turn._replace(gap=turn.gap and change(turn.gap)) for turn in session.turns])


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
