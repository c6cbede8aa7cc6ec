"""Ours with each of its parts left out, on a workload where that part has something to do: always in the report.

coding   closed loop of coding sessions that do not fit (S6): retention, admission, order
graphs   fork-join graphs of agents on a small pool (S10): the gang reads shared prompts once
chat     programs of calls whose outputs are sent back (S8): the splice
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from ramet.runtime.simulate.figure import Figure
from ramet.runtime.simulate.figures.agents import load_point, machine, recorded
from ramet.runtime.simulate.figures.graphs import measure
from ramet.runtime.simulate.policies import BASELINES, PARTS, build_runner
from ramet.runtime.simulate.synthetic import autellix_programs
from ramet.runtime.simulate.workload import resent

OURS = BASELINES["B7"]
NOTHING: frozenset[str] = frozenset()
SEED = 2


def ablations(
    traces: Path, *, load: int = 72, until_s: float = 600.0, num_graphs: int = 24, num_programs: int = 200
) -> Figure:
    rows = {"ours": NOTHING} | {f"without {part}": frozenset({part}) for part in PARTS}
    values: dict[str, float] = {}
    for row, without in rows.items():
        values |= _prefixed(row, _coding(OURS, without, traces, load, until_s))
        values |= _prefixed(row, _graphs(OURS, without, num_graphs))
        values |= _prefixed(row, _chat(OURS, without, num_programs))
    with_residency = f"{OURS}-residency"
    values |= _prefixed("with residency", _coding(with_residency, NOTHING, traces, load, until_s))
    values |= _prefixed("with residency", _graphs(with_residency, NOTHING, num_graphs))
    notes = (
        f"coding: closed loop of {load}, {until_s:g} s, second half counted, seed {SEED}",
        f"graphs: {num_graphs} at 1/s, no lower tier; chat: {num_programs} programs at 2/s on a pool of 60,000 tokens",
        "residency: the order counts what a program has to rebuild first; the engine's order does not",
    )
    return Figure(name="ablations", title="Ours with one part left out", values=values, notes=notes)


def _prefixed(row: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{row}: {name}": value for name, value in values.items()}


def _coding(policy: str, without: frozenset[str], traces: Path, load: int, until_s: float) -> dict[str, float]:
    point = load_point(policy, load, SEED, recorded(traces), until_s, without)
    return {"coding_hit": point.hit, "coding_turns_per_min": point.turns_per_min}


def _graphs(policy: str, without: frozenset[str], num_graphs: int) -> dict[str, float]:
    found = measure(policy, 1.0, has_host=False, num_graphs=num_graphs, without=without)
    return {"graphs_completion_s": found.completion_s}


def _chat(policy: str, without: frozenset[str], num_programs: int) -> dict[str, float]:
    programs = autellix_programs(("chat",), 2.0, num_programs, SEED)
    if "splice" in without:
        programs = [resent(program) for program in programs]
    replay = build_runner(policy, machine(60_000), without).open_loop(programs)
    computed = sum(turn.prompt_tokens - turn.cached_tokens for turn in replay.turns)
    completion = fmean(session.ended_s - session.started_s for session in replay.sessions)
    return {"chat_completion_s": completion, "chat_computed_tokens": computed}
