"""The host tier as a price, even sharing worked out, and the synthetic workloads."""

from statistics import fmean

import pytest

from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.fair import fair_ends
from ramet.runtime.simulate.host import HostTier
from ramet.runtime.simulate.policies import MachineConfig, build_runner
from ramet.runtime.simulate.synthetic import AUTELLIX, agent_graphs, autellix_programs, continuum_sessions
from ramet.runtime.simulate.workload import Gap, Session, Turn


def test_the_host_keeps_the_last_used_or_the_most_worth() -> None:
    by_use = HostTier(100)
    for name in ("a", "b", "a", "c"):
        by_use.write(name, 40, 0.0)
    assert (by_use.held("a"), by_use.held("b"), by_use.held("c")) == (40, 0, 40)
    by_worth = HostTier(100, lambda session, now: {"a": 3.0, "b": 2.0, "c": 1.0}[session])
    for name in ("a", "b", "c"):
        by_worth.write(name, 40, 0.0)
    assert (by_worth.held("a"), by_worth.held("b"), by_worth.held("c")) == (40, 40, 0)
    by_worth.drop("a")
    assert by_worth.num_tokens == 40


def test_loading_is_cheaper_than_computing_again() -> None:
    """Two sessions that do not fit together, one after the other, twice."""
    sessions = [
        Session(name=name, turns=[Turn(0, 6_000, 8, Gap(20.0)), Turn(6_000, 64, 8, None)], arrived_s=at)
        for name, at in (("a", 0.0), ("b", 5.0))
    ]
    waits = {}
    for host_tokens in (0, 20_000):
        config = MachineConfig(
            cost=named_cost("h200", "llama-3.1-8b"), pool_tokens=8_000, page_size=64, host_tokens=host_tokens
        )
        replay = build_runner("fcfs", config).open_loop(sessions)
        waits[host_tokens] = fmean(turn.first_token_s for turn in replay.turns if turn.place == 1)
        assert (replay.loaded_tokens > 5_000) == bool(host_tokens)
    assert waits[20_000] < 0.6 * waits[0]


def test_even_sharing_by_hand() -> None:
    assert fair_ends([0.0, 0.0], [2.0, 6.0], 1.0) == pytest.approx([4.0, 8.0])
    assert fair_ends([0.0, 1.0], [4.0, 1.0], 1.0) == pytest.approx([5.0, 3.0])
    assert fair_ends([5.0, 0.0], [1.0, 1.0], 2.0) == pytest.approx([5.5, 0.5])


def test_more_than_its_cost_is_given_later() -> None:
    assert fair_ends([0.0, 0.0], [2.0, 6.0], 1.0, targets=[4.0, 6.0]) == pytest.approx([6.0, 8.0])


def test_published_parameters_are_those_of_the_workloads() -> None:
    programs = autellix_programs(["chat"], 1.0, 3000, seed=0)
    turns = [turn for program in programs for turn in program.turns]
    shape = AUTELLIX["chat"]
    assert fmean(len(program.turns) for program in programs) == pytest.approx(shape.calls_mean, rel=0.05)
    assert fmean(turn.new_tokens for turn in turns) == pytest.approx(shape.input_tokens, rel=0.05)
    assert fmean(turn.output_tokens for turn in turns) == pytest.approx(shape.output_tokens, rel=0.05)
    sessions = continuum_sessions(5, 0.13, 400, seed=0)
    assert fmean(len(session.turns) for session in sessions) == pytest.approx(54.5, rel=0.03)
    tokens = [sum(turn.new_tokens + turn.output_tokens for turn in session.turns) for session in sessions]
    assert fmean(tokens) == pytest.approx(70_000, rel=0.05)


def test_trees_and_graphs_have_as_many_calls_as_published() -> None:
    trees = autellix_programs(["tree"], 1.0, 300, seed=0)
    assert len(trees) / 300 == pytest.approx(159.7, rel=0.1)
    assert {turn.new_tokens + 300 for tree in trees for turn in tree.turns} == {467}
    graphs = agent_graphs(1.0, 24, seed=0)
    assert sum(len(session.turns) for session in graphs) == 24 * 27
    assert sum(turn.output_tokens for s in graphs for turn in s.turns) == pytest.approx(155_136, rel=0.05)
    names = [session.name for session in graphs]
    assert all(names.index(other) < place for place, s in enumerate(graphs) for other in s.after)
