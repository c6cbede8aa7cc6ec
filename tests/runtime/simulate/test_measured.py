"""A cost model that is fitted to timed steps: it finds what made them, and a twin of an engine runs on it."""

import random

import pytest

from ramet.runtime.simulate.measured import KNOTS, MeasuredCost, StepShape, TimedStep, fit
from ramet.runtime.simulate.twin import EngineSettings, twin
from ramet.runtime.simulate.workload import Gap, Session, Turn
from ramet.runtime.types import PlannedRow

TRUE = MeasuredCost(
    base_s=(2e-3, 3e-3, 7e-3, 2.2e-2, 7e-2, 0.13), row_s=2e-4, read_s=2e-6, pair_s=5e-8, between_s=(3e-4, 2e-5), error=0
)


def some_shapes(count: int) -> list[StepShape]:
    source, shapes = random.Random(3), []
    for _ in range(count):
        num_decoding, chunk = source.randint(0, 16), source.choice([0, 0, 24, 100, 300, 500])
        rows = [PlannedRow(n, [0], source.randint(16, 1500), []) for n in range(num_decoding)]
        if chunk or not rows:
            rows.append(PlannedRow(99, [0] * max(2, chunk), source.choice([0, 256, 800]), []))
        shapes.append(StepShape.of(rows))
    return shapes


def test_a_fit_finds_what_made_the_steps() -> None:
    source = random.Random(1)
    steps = [
        TimedStep(shape, TRUE.shape_s(shape) * source.uniform(0.97, 1.03), 3e-4 + 2e-5 * shape.num_rows)
        for shape in some_shapes(400)
    ]
    found = fit(steps)
    assert found.error < 0.03
    assert found.between_s == pytest.approx(TRUE.between_s, rel=0.05)
    for shape in some_shapes(50):
        assert found.shape_s(shape) == pytest.approx(TRUE.shape_s(shape), rel=0.08)


def test_steps_that_met_somebody_else_do_not_count() -> None:
    steps = [TimedStep(shape, TRUE.shape_s(shape), None) for shape in some_shapes(300)]
    spoilt = [step._replace(compute_s=8 * step.compute_s) if n % 25 == 0 else step for n, step in enumerate(steps)]
    found = fit(spoilt)
    shape = StepShape(8, 8, 4_000, 0.0)
    assert found.shape_s(shape) == pytest.approx(TRUE.shape_s(shape), rel=0.1)
    assert found.between_s == (0.0, 0.0)


def test_the_table_is_straight_between_its_knots_and_beyond() -> None:
    only_base = MeasuredCost(tuple(float(knot) for knot in KNOTS), 0, 0, 0, (0, 0), 0)
    for num_tokens in (1, 3, 40, 512, 700):
        assert only_base.shape_s(StepShape(num_tokens, 0, 0, 0)) == pytest.approx(num_tokens)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="measured steps, got 3"):
        fit([TimedStep(shape, 1.0, None) for shape in some_shapes(3)])


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "las", "atlas", "program-fcfs", "gittins"])
def test_the_twin_of_an_engine_runs_every_policy_that_an_engine_has(policy: str) -> None:
    settings = EngineSettings(policy=policy, kv_tokens=2_048, max_running=8)  # type: ignore[arg-type]
    sessions = [
        Session(name=f"s{n}", turns=[Turn(0, 300, 8, Gap(0.1)), Turn(308, 64, 8, None)], arrived_s=0.05 * n)
        for n in range(8)
    ]
    runner = twin(settings, TRUE)
    found = runner.open_loop(sessions)
    runner.check_idle()
    assert len(found.sessions) == 8 and found.num_refused == 0
    assert found.seconds > found.busy_s  # the loop between the steps takes time too
