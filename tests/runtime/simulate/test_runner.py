"""The simulator runs the real scheduler: equal runs give equal records, pages balance, policies differ by name."""

import json
from pathlib import Path

import pytest

from ramet.runtime.errors import BadRequest
from ramet.runtime.simulate.cli import as_dict, as_text, bars, run
from ramet.runtime.simulate.cost import RowCost, named_cost, shared_reads
from ramet.runtime.simulate.figures.order import s3
from ramet.runtime.simulate.policies import BASELINES, POLICIES, MachineConfig, build_runner
from ramet.runtime.simulate.runner import Replay
from ramet.runtime.simulate.summary import later_hit_rate, summary
from ramet.runtime.simulate.workload import Gap, Session, Turn, starting_sessions
from ramet.runtime.types import RowGroup

COST = named_cost("h200", "llama-3.1-8b")


def replay(policy: str, *, pool_tokens: int = 40_000, num_sessions: int = 24, num_drafts: int = 15) -> Replay:
    config = MachineConfig(cost=COST, pool_tokens=pool_tokens, page_size=16, num_drafts=num_drafts)
    runner = build_runner(policy, config)
    found = runner.open_loop(starting_sessions(seed=2, num_sessions=num_sessions))
    runner.check_idle()
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_ends_every_turn_and_loses_no_page(policy: str) -> None:
    found = replay(policy)
    assert len(found.sessions) == 24 and found.num_refused == 0
    assert all(turn.output_tokens > 0 for turn in found.turns)


def test_the_same_run_gives_the_same_records() -> None:
    assert replay("gittins").turns == replay("gittins").turns


def test_every_baseline_of_the_report_has_its_policy() -> None:
    assert sorted(BASELINES) == ["B0", "B1", "B2", "B3", "B4", "B5a", "B5b", "B6", "B7", "B8"]
    assert set(BASELINES.values()) <= set(POLICIES)


def test_one_step_for_many_tokens_takes_as_long_as_many_steps() -> None:
    alone = [Session(name="s", turns=[Turn(0, 500, 200, None)])]
    times = []
    for num_drafts in (0, 15):
        config = MachineConfig(cost=COST, pool_tokens=10_000, num_drafts=num_drafts)
        times.append(build_runner("fcfs", config).open_loop(alone).seconds)
    assert times[1] == pytest.approx(times[0], rel=0.01)


def test_a_turn_finds_what_its_session_computed() -> None:
    turns = [Turn(0, 160, 16, Gap(1.0)), Turn(160, 64, 16, Gap(1.0)), Turn(224, 16, 16, None)]
    found = build_runner("gittins", MachineConfig(cost=COST, pool_tokens=4_000)).open_loop(
        [Session(name="s", turns=turns)]
    )
    assert [turn.cached_tokens for turn in found.turns] == [0, 160, 224]
    assert later_hit_rate(found.turns) == pytest.approx(384 / 464)


def test_sessions_share_a_named_head_and_nothing_else() -> None:
    sessions = [
        Session(name=f"s{n}", turns=[Turn(0, 50, 4, None)], shared_prefix=("head", 320), arrived_s=float(n))
        for n in range(3)
    ]
    found = build_runner("fcfs", MachineConfig(cost=COST, pool_tokens=4_000)).open_loop(sessions)
    assert [turn.cached_tokens for turn in found.turns] == [0, 320, 320]


def test_a_session_larger_than_the_pool_is_refused_and_the_others_go_on() -> None:
    sessions = [
        Session(name="huge", turns=[Turn(0, 9_000, 10, Gap(1.0)), Turn(9_000, 10, 10, None)]),
        Session(name="small", turns=[Turn(0, 100, 10, None)]),
    ]
    found = build_runner("gittins", MachineConfig(cost=COST, pool_tokens=4_000)).open_loop(sessions)
    assert found.num_refused == 1 and len(found.sessions) == 2


def test_without_pressure_no_policy_recomputes() -> None:
    for policy in ("fcfs", "gittins", "pause"):
        assert sum(turn.recomputed_tokens for turn in replay(policy, pool_tokens=600_000).turns) < 24 * 16


def test_the_roofline_of_a_step() -> None:
    decode = COST.step_s([RowCost(1, 1000)])
    assert decode == pytest.approx(2e-3 + (16e9 + 131_072 * 1000) / 4e12)
    prefill = COST.step_s([RowCost(8192, 0)])
    assert prefill == pytest.approx(2e-3 + (2 * 8e9 * 8192 + 4 * 32 * 4096 * 8192 * 4096) / 495e12)
    assert COST.rebuild_s(0, 100_000) == pytest.approx(8.5, rel=0.01) and COST.reload_s(100_000) == pytest.approx(
        0.26, rel=0.01
    )
    assert shared_reads([RowGroup((0, 1, 2), 100)]) == 200


def test_a_run_reports_its_settings_and_its_figures(tmp_path: Path) -> None:
    trace = tmp_path / "small.jsonl"
    rows = [{"timestamp": 50 * n, "input_length": 600, "output_length": 8, "hash_ids": [0, n + 1]} for n in range(20)]
    trace.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = run(trace, "lpm", pool_tokens=40_000)
    figures = found["figures"]
    assert isinstance(figures, dict) and figures["sessions_ended"] == 20
    assert figures["hit_tokens_device"] == 19 * 512
    json.dumps(found, allow_nan=False)


def test_bars_are_plain_data_and_text() -> None:
    found = bars(["S3"])
    json.dumps(found, allow_nan=False)
    assert found["all_hold"] is True
    assert "S3" in as_text(s3()) and as_dict(s3())["name"] == "S3"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_runner("best", MachineConfig(cost=COST, pool_tokens=100)), "one of fcfs"),
        (lambda: named_cost("abacus", "llama-3.1-8b"), "h200"),
        (lambda: bars(["S99"]), "S99"),
    ],
    ids=["policy", "gpu", "figure"],
)
def test_an_unknown_name_lists_the_known_ones(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadRequest, match=message):
        call()


def test_a_summary_of_nothing_is_not_an_error() -> None:
    assert summary(Replay())["turns_ended"] == 0
