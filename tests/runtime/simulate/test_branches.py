"""Programs of several branches: who waits for whom, and when the program is over."""

from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.policies import MachineConfig, build_runner
from ramet.runtime.simulate.workload import Gap, Session, Turn

CONFIG = MachineConfig(cost=named_cost("h200", "llama-3.1-8b"), pool_tokens=20_000)


def fork_and_join() -> list[Session]:
    head = ("head", 320)
    branches = [
        Session(name=f"p/b{n}", turns=[Turn(0, 32, 8 * (n + 1), None)], shared_prefix=head, after=("p/start",))
        for n in range(3)
    ]
    last = Session(
        name="p/join", turns=[Turn(0, 64, 8, None)], after=tuple(branch.name for branch in branches), arrived_s=1.0
    )
    return [Session(name="p/start", turns=[Turn(0, 8, 8, None)], shared_prefix=head), *branches, last]


def test_branches_come_after_those_that_they_wait_for() -> None:
    found = {s.name: s for s in build_runner("gittins", CONFIG).open_loop(fork_and_join()).sessions}
    assert set(found) == {"p/start", "p/b0", "p/b1", "p/b2", "p/join"}
    assert all(found[f"p/b{n}"].started_s == found["p/start"].ended_s for n in range(3))
    assert found["p/join"].started_s == max(found[f"p/b{n}"].ended_s for n in range(3)) + 1.0


def test_a_program_is_over_with_its_last_branch() -> None:
    runner = build_runner("gittins", CONFIG)
    runner.open_loop(fork_and_join())
    runner.check_idle()
    assert runner.num_programs == 0


def test_branches_find_the_head_that_they_share() -> None:
    replay = build_runner("fcfs", CONFIG).open_loop(fork_and_join())
    assert [turn.cached_tokens for turn in replay.turns if "/b" in turn.session] == [320, 320, 320]


def test_a_turn_waits_for_the_link_and_others_go_on_meanwhile() -> None:
    """`a` lost its context to `b`; while it is read, `c` computes."""
    slow = named_cost("h200", "llama-3.1-8b")
    sessions = [
        Session(name="a", turns=[Turn(0, 6_000, 8, Gap(20.0)), Turn(6_000, 64, 8, None)]),
        Session(name="b", turns=[Turn(0, 6_000, 8, None)], arrived_s=5.0),
    ]
    config = MachineConfig(cost=slow, pool_tokens=8_000, page_size=64, host_tokens=20_000)
    replay = build_runner("fcfs", config).open_loop(sessions)
    returned = next(turn for turn in replay.turns if turn.session == "a" and turn.place == 1)
    assert returned.queue_s >= slow.reload_s(3_000) and replay.loaded_tokens > 3_000
