"""Parts of ours can be left out one at a time, each changes what it is about, and the command says what it drew."""

import inspect
import json
from pathlib import Path

import pytest

from ramet.runtime.errors import BadRequest
from ramet.runtime.simulate.cli import run
from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.figure import Figure
from ramet.runtime.simulate.figures.registry import FIGURES, QUICK
from ramet.runtime.simulate.plots import check_plot, load_points, plot_load_curve, plot_runs
from ramet.runtime.simulate.policies import PARTS, MachineConfig, build_runner
from ramet.runtime.simulate.runner import Replay
from ramet.runtime.simulate.workload import Gap, Session, Turn, resent, starting_sessions

CONFIG = MachineConfig(cost=named_cost("h200", "llama-3.1-8b"), pool_tokens=40_000)


def replay(*without: str) -> Replay:
    runner = build_runner("gittins", CONFIG, frozenset(without))
    found = runner.open_loop(starting_sessions(seed=2, num_sessions=24))
    runner.check_idle()
    return found


@pytest.mark.parametrize("part", ["retention", "admission", "order"])
def test_leaving_out_a_part_changes_the_run(part: str) -> None:
    assert replay(part).turns != replay().turns


def test_without_the_gang_a_shared_prompt_is_read_by_each() -> None:
    sessions = [
        Session(name=f"p/b{n}", turns=[Turn(0, 8, 200, None)], shared_prefix=("head", 30_000)) for n in range(8)
    ]
    times = [
        build_runner("gittins", CONFIG, frozenset(without)).open_loop(sessions).seconds for without in ((), ("gang",))
    ]
    assert times[1] > 1.3 * times[0]


def test_without_the_splice_an_output_is_computed_twice() -> None:
    turns = [Turn(0, 160, 64, Gap(1.0)), Turn(224, 32, 64, Gap(1.0)), Turn(320, 32, 64, None)]
    plain = Session(name="s", turns=turns)
    cut = resent(plain)
    assert [turn.kept_tokens for turn in cut.turns] == [0, 160, 256]
    assert [turn.kept_tokens + turn.new_tokens for turn in cut.turns] == [160, 256, 352]
    cached = [turn.cached_tokens for turn in build_runner("gittins", CONFIG).open_loop([cut]).turns]
    assert cached == [0, 160, 256]


@pytest.mark.parametrize(
    ("policy", "part", "message"), [("gittins", "colour", "retention"), ("fcfs", "order", "--policy gittins")]
)
def test_a_part_that_is_not_there_is_named(policy: str, part: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        build_runner(policy, CONFIG, frozenset({part}))


def test_a_run_says_what_was_left_out(tmp_path: Path) -> None:
    trace = tmp_path / "small.jsonl"
    rows = [{"timestamp": 50 * n, "input_length": 600, "output_length": 8, "hash_ids": [0, n + 1]} for n in range(4)]
    trace.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = run(trace, "B7", pool_tokens=40_000, without=PARTS)
    settings = found["settings"]
    assert isinstance(settings, dict) and settings["without"] == sorted(PARTS)


def test_quick_figures_are_some_of_all_figures() -> None:
    assert set(QUICK) < set(FIGURES)
    for measure in QUICK.values():
        inspect.signature(measure).bind(Path("traces"))


def test_a_load_curve_is_read_from_its_figure() -> None:
    values = {"fcfs_24_hit": 0.5, "fcfs_96_hit": 0.1, "gittins_24_hit": 0.9, "gittins_24_turns_per_min": 300.0}
    assert load_points(values, "hit") == {"fcfs": {24: 0.5, 96: 0.1}, "gittins": {24: 0.9}}


@pytest.mark.parametrize("name", ["runs.gif", "no-such-folder/runs.png"])
def test_a_plot_that_can_not_be_written_is_refused_before_the_run(name: str) -> None:
    with pytest.raises(BadRequest, match="--plot"):
        check_plot(Path(name))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_runs_and_load_curves_are_drawn(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    runs, curve = tmp_path / f"runs{suffix}", tmp_path / f"curve{suffix}"
    check_plot(runs)
    plot_runs({"gittins": replay(), "without order": replay("order")}, runs)
    values = {
        f"{policy}_{load}_{field}": 1.0
        for policy in ("a", "b")
        for load in (24, 48)
        for field in ("hit", "turns_per_min")
    }
    plot_load_curve(Figure(name="S6", title="", values=values), curve)
    assert runs.stat().st_size > 5_000 and curve.stat().st_size > 5_000
