"""InferCept's ladder: each rung does what it says, and waste is counted where it arises."""

from statistics import fmean

import pytest

from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.figures.intercept import measure
from ramet.runtime.simulate.policies import MachineConfig, build_runner
from ramet.runtime.simulate.synthetic import AUGMENTATIONS, augmented_sessions
from ramet.runtime.simulate.waste import WasteMeter
from ramet.runtime.simulate.workload import Gap, Session, Turn

COST = named_cost("a100", "llama-2-13b")


def returning() -> list[Session]:
    return [Session(name="s", turns=[Turn(0, 1_024, 8, Gap(5.0)), Turn(1_024, 16, 8, None)])]


@pytest.mark.parametrize(
    ("policy", "recomputed", "loaded"),
    [("intercept-discard", 1_024, 0), ("intercept-swap", 0, 1_024), ("fcfs", 0, 0)],
)
def test_a_rung_discards_swaps_or_keeps(policy: str, recomputed: int, loaded: int) -> None:
    host = 0 if policy == "intercept-discard" else 20_000
    runner = build_runner(policy, MachineConfig(cost=COST, pool_tokens=8_000, host_tokens=host))
    meter = WasteMeter(runner.tree, COST)
    runner.watchers.append(meter)
    # a second session keeps steps coming, for a rule decides after a step
    replay = runner.open_loop([*returning(), Session(name="other", turns=[Turn(0, 64, 400, None)])])
    turn = next(turn for turn in replay.turns if turn.session == "s" and turn.place == 1)
    assert turn.prompt_tokens - turn.cached_tokens >= recomputed
    assert replay.loaded_tokens >= loaded - 16
    assert (meter.recomputed > 0) == bool(recomputed) and (meter.moved > 0) == bool(loaded)
    assert (meter.held > 0) == (policy == "fcfs") and meter.held_from_others == 0
    runner.check_idle()


def test_the_ladder_goes_down() -> None:
    wasted = [measure(policy, 60).wasted for policy in ("intercept-discard", "intercept-swap", "intercept")]
    assert wasted[0] > 2 * wasted[1] > 2 * wasted[2] > 0


def test_augmented_programs_leave_the_model_with_about_the_published_context() -> None:
    sessions = augmented_sessions(2.0, 3_000, seed=0)
    for kind, shape in AUGMENTATIONS.items():
        own = [session for session in sessions if session.workload == kind]
        left = [turn for session in own for turn in session.turns if turn.gap is not None]
        contexts = [turn.kept_tokens + turn.new_tokens + turn.output_tokens for turn in left]
        assert fmean(contexts) == pytest.approx(shape.context_tokens, rel=0.25)
        gaps = [turn.gap.duration_s for turn in left if turn.gap is not None]
        assert fmean(gaps) == pytest.approx(shape.gap_s, rel=0.15)
