"""A session that edits its history leaves the old tail to be evicted first, and keeps its head."""

from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.policies import MachineConfig, build_runner
from ramet.runtime.simulate.runner import Runner
from ramet.runtime.simulate.workload import Gap, Session, Turn

COST = named_cost("h200", "llama-3.1-8b")


def after(turns: list[Turn], pool_tokens: int = 4_000) -> Runner:
    """A machine on which the session has just begun its last gap."""
    runner = build_runner("gittins", MachineConfig(cost=COST, pool_tokens=pool_tokens, page_size=16))
    runner.open_loop([Session(name="s", turns=turns)], until_s=50.0)
    return runner


def superseded(runner: Runner) -> list[tuple[int, int]]:
    tree = runner._scheduler.cache.tree
    assert tree is not None
    return sorted((node.start, node.end) for node in tree.nodes() if node.is_superseded)


def test_the_tail_that_a_turn_took_back_goes_first() -> None:
    runner = after([Turn(0, 400, 16, Gap(1.0)), Turn(160, 64, 16, Gap(1e6)), Turn(240, 16, 16, None)])
    assert superseded(runner) == [(160, 400)]


def test_a_turn_that_goes_on_leaves_nothing() -> None:
    assert superseded(after([Turn(0, 400, 16, Gap(1.0)), Turn(416, 64, 16, Gap(1e6)), Turn(496, 8, 8, None)])) == []


def test_an_edit_inside_a_page_keeps_the_whole_pages_before_it() -> None:
    runner = after([Turn(0, 400, 16, Gap(1.0)), Turn(170, 64, 16, Gap(1e6)), Turn(250, 16, 16, None)])
    assert superseded(runner) == [(160, 400)]
