"""The figures that can be checked to the digit, and the bars of the others in small."""

import random
from pathlib import Path

import pytest

from ramet.runtime.simulate.figure import Figure
from ramet.runtime.simulate.figures.agents import LRU, OURS, THUNDER, load_point, s7
from ramet.runtime.simulate.figures.capacity import belady_hit_rate, lru_hit_rate, s1, s1b
from ramet.runtime.simulate.figures.gang import EXPECTED, run_gang, s14
from ramet.runtime.simulate.figures.order import s3, s9
from ramet.runtime.simulate.figures.published import rate_at
from ramet.runtime.simulate.figures.retention import s16
from ramet.runtime.simulate.figures.ttl import s2
from ramet.runtime.simulate.traces import BlockRequest, weka

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the repository")


def failing(figure: Figure) -> list[str]:
    return [f"{check.name} = {check.value:.5g}" for check in figure.checks if not check.holds]


@needs_traces
def test_s1_hit_rates_of_the_radix_tree_are_exact() -> None:
    assert failing(s1(TRACES)) == []


@needs_traces
def test_s1b_hit_rates_of_the_oracle_are_exact() -> None:
    assert failing(s1b(TRACES)) == []


@needs_traces
def test_s2_time_to_live_is_exact() -> None:
    assert failing(s2(TRACES)) == []


def test_s3_toy_waits_are_exact_and_ours_is_shorter() -> None:
    figure = s3()
    assert failing(figure) == [] and figure.values["ours"] == 11


@needs_traces
@pytest.mark.slow
def test_s9_gittins_is_never_far_from_the_better_order() -> None:
    figure = s9(TRACES, seeds=(0, 1))
    over_better = [check for check in figure.checks if check.name.endswith("_gittins_over_better")]
    assert len(over_better) == 3 and all(check.value <= 1.02 for check in over_better)
    assert figure.values["mix_gittins_mean"] < 0.97 * figure.values["mix_plas_mean"]
    assert figure.values["weka_gittins_fair_largest"] < 0.7 * figure.values["weka_gittins_largest"]


def test_s14_a_gang_reads_its_prefix_once_and_joins_in_time() -> None:
    assert failing(s14()) == []


def test_a_gang_computes_only_what_is_its_own() -> None:
    assert {num_branches for num_branches, _ in EXPECTED} == {8, 32}
    assert run_gang(8, 4096).num_computed == 8


def test_s16_estimators_earn_what_they_should() -> None:
    assert failing(s16()) == []


@needs_traces
@pytest.mark.slow
def test_s6_in_small_ours_stays_resident_where_lru_thrashes() -> None:
    recorded = weka(TRACES / "weka-claude-code" / "weka_compact.jsonl.gz")
    ours, lru = (load_point(policy, 72, 0, recorded, until_s=400.0) for policy in (OURS, LRU))
    assert ours.hit >= 0.94 and lru.hit < 0.10
    assert ours.turns_per_min >= 3 * lru.turns_per_min


@pytest.mark.slow
def test_s7_nobody_waits_for_being_large_but_under_the_smallest_first_rule() -> None:
    figure = s7(seeds=(0,))
    assert failing(figure) == []
    assert THUNDER == "pause"


def test_the_oracle_is_never_worse_than_lru_and_both_meet_without_a_limit() -> None:
    source = random.Random(5)
    paths = [tuple(range(start, start + 8)) for start in range(0, 80, 8)]
    requests = [
        BlockRequest(float(time), 1, 1, (*source.choice(paths)[: source.randint(1, 8)], 1000 + time))
        for time in range(400)
    ]
    for capacity in (10, 25, 60):
        assert belady_hit_rate(requests, capacity) >= lru_hit_rate(requests, capacity)
    assert belady_hit_rate(requests, 10_000) == lru_hit_rate(requests, None)


def test_a_load_curve_is_read_between_its_points_and_not_beyond_them() -> None:
    rates, latencies = (1.0, 2.0, 4.0), (0.1, 0.3, 0.7)
    assert rate_at(0.2, rates, latencies) == pytest.approx(1.5)
    assert rate_at(0.05, rates, latencies) == 0.0
    assert rate_at(9.0, rates, latencies) == 4.0
