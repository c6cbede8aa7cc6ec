"""Programs go through their states, are charged for what they had, and their waiting KV has a price."""

import random

import pytest

from ramet.radix.check import check
from ramet.radix.lease import Lease
from ramet.radix.tree import RadixTree
from ramet.runtime.scheduler.policies.gittins import gittins
from ramet.runtime.scheduler.policies.las import las
from ramet.runtime.scheduler.policies.program_fcfs import program_fcfs
from ramet.runtime.scheduler.program_feed import unshared_tokens
from ramet.runtime.scheduler.programs import Program, ProgramTable, State, StepShare
from ramet.runtime.scheduler.retention import RetentionOrder
from ramet.runtime.scheduler.sequence import Request, Sequence
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.types import GenerateSpec, ProgramSpec

POOL = 1000


def share(program: str, request: int, context: int = 100, new: int = 10, *, is_prefill: bool = True) -> StepShare:
    return StepShare(program, request, context, new, is_prefill)


def opened(table: ProgramTable, name: str, now: float = 0.0, **spec: object) -> Program:
    return table.open(ProgramSpec(program_id=name, **spec), now)  # type: ignore[arg-type]


def sequence(name: str, request: int, arrived_s: float) -> Sequence:
    spec = ProgramSpec(program_id=name)
    return Sequence(Request(request_id=request, tokens=TokenRow([1]), spec=GenerateSpec(), program=spec), arrived_s)


def run_turn(table: ProgramTable, name: str, request: int, at: float, seconds: float) -> None:
    table.queue(name, request, at)
    table.step([share(name, request)], seconds, at + seconds)
    table.end_turn(name, request, None, 100, 50)


def test_the_life_of_a_program() -> None:
    table = ProgramTable(POOL)
    program = opened(table, "p", 1.0)
    states = [program.state]
    table.queue("p", 1, 2.0)
    states.append(program.state)
    table.step([share("p", 1)], 0.5, 3.0)
    states.append(program.state)
    table.step([share("p", 1, is_prefill=False)], 0.5, 3.5)
    states.append(program.state)
    table.end_turn("p", 1, None, 120, 120)
    table.gap("p", "tool", 3.5, ("w", "shell"))
    states.append(program.state)
    table.queue("p", 2, 7.5)
    states.append(program.state)
    table.close("p")
    states.append(program.state)
    assert [state.name for state in states] == [
        "NEW", "QUEUED", "PREFILL", "DECODE", "TOOL_GAP", "RETURNED", "DONE",
    ]  # fmt: skip
    assert table.estimator.num_learned(("w", "shell")) == 1 and table.find("p") is None


def test_service_is_context_held_plus_compute_shared_by_tokens() -> None:
    table = ProgramTable(POOL)
    opened(table, "a"), opened(table, "b")
    table.queue("a", 1, 0.0)
    table.queue("b", 2, 0.0)
    table.step([share("a", 1, context=300, new=30), share("b", 2, context=100, new=10)], 2.0, 2.0)
    assert table["a"].attained == pytest.approx(2.0 * (300 + POOL * 30 / 40))
    assert table["b"].attained == pytest.approx(2.0 * (100 + POOL * 10 / 40))
    assert table.virtual.now == pytest.approx((table["a"].attained + table["b"].attained) / 2)


def test_parallel_turns_count_by_their_longest_path() -> None:
    table = ProgramTable(POOL)
    program = opened(table, "p")
    table.queue("p", 1, 0.0)
    table.queue("p", 2, 0.0)
    table.step([share("p", 1), share("p", 2)], 1.0, 1.0)
    table.step([share("p", 2)], 1.0, 2.0)
    both = program.attained
    table.end_turn("p", 1, None, 100, 100)
    table.end_turn("p", 2, None, 100, 100)
    assert 0 < program.critical < both


def test_a_program_that_fell_behind_its_fair_share_goes_first() -> None:
    table = ProgramTable(POOL)
    for number in range(3):
        opened(table, f"done-{number}")
        run_turn(table, f"done-{number}", number, 0.0, 1.0)
        table.close(f"done-{number}")
    late = opened(table, "late", 1.0)
    table.queue("late", 50, 1.0)
    assert not table.is_starving(late)
    opened(table, "hog", 1.0)
    table.queue("hog", 51, 1.0)
    for second in range(20):
        table.step([share("hog", 51)], 1.0, 2.0 + second)
    assert table.is_starving(late) and not table.is_starving(table["hog"])
    order = gittins(table)
    assert order.rank(sequence("late", 50, 1.0), 30.0) < order.rank(sequence("hog", 51, 1.0), 30.0)


def test_orders_of_programs() -> None:
    table = ProgramTable(POOL)
    opened(table, "old", 0.0), opened(table, "new", 5.0)
    run_turn(table, "old", 1, 0.0, 3.0)
    table.queue("old", 2, 6.0)
    table.queue("new", 3, 6.0)
    old, new = sequence("old", 2, 6.0), sequence("new", 3, 6.0)
    assert program_fcfs(table).rank(old, 7.0) < program_fcfs(table).rank(new, 7.0)
    assert las(table).rank(new, 7.0) < las(table).rank(old, 7.0)
    mine = gittins(table, fair=False, by_admission=False)
    assert mine.rank(new, 7.0) < mine.rank(old, 7.0), "a class that knows nothing goes by attained service"


def test_while_memory_is_full_a_new_program_stands_behind_those_that_were_let_in() -> None:
    table = ProgramTable(POOL)
    opened(table, "inside"), opened(table, "outside")
    run_turn(table, "inside", 1, 0.0, 900.0)
    table.queue("inside", 2, 1.0)
    table.queue("outside", 3, 1.0)
    order = gittins(table)
    inside, outside = sequence("inside", 2, 1.0), sequence("outside", 3, 1.0)
    assert order.rank(outside, 2.0) < order.rank(inside, 2.0), "there is room: it has had least"
    before = order.epoch
    table.refuse(until_s=10.0)
    assert order.epoch == before + 1 and order.rank(inside, 2.0) < order.rank(outside, 2.0)
    assert order.rank(outside, 11.0) < order.rank(inside, 11.0), "it is tried again after a while"
    assert order.epoch == before + 2, "who waits is ranked again when that while is over, and not one by one"


# What waiting KV is worth
# ----------------------------------------------------------------------------------------------


def leaf(tree: RadixTree, name: str, tokens: list[int], first_page: int) -> Lease:
    lease = tree.lease(tree.match(tokens))
    new = tokens[lease.num_tokens :]
    tree.insert(lease, new, list(range(first_page, first_page + len(new) // tree.page_size)), owner=name)
    lease.release()
    return lease


class World:
    """Two programs over a shared head, one in a short tool gap and one in a long one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tree = RadixTree(4, clock=lambda: self.now)
        self.table = ProgramTable(POOL)
        self.order = RetentionOrder(self.table, lambda start, end: 0.01 * (end - start), extra_wait_s=lambda: 0.1)
        for _ in range(200):
            self.table.estimator.learn(("w", "grep"), 0.05)
            self.table.estimator.learn(("w", "build"), 120.0)
        for name, tail, page, key in (("quick", 1, 100, "grep"), ("slow", 2, 200, "build")):
            program = opened(self.table, name, workload="w")
            cursor = leaf(self.tree, name, [0] * 8 + [tail] * 8, page).cursor
            self.table.queue(name, page, 0.0)
            self.table.end_turn(name, page, cursor, 16, unshared_tokens(cursor, name))
            self.table.gap(name, "tool", 0.0, ("w", key))
            self.tree.attach(name, cursor)
            assert program.state is State.TOOL_GAP

    def evict(self, num_pages: int) -> list[int]:
        evicted = self.tree.evict(num_pages, self.order)
        check(self.tree)
        return [page for each in evicted for page in each.pages.tolist()]


def test_the_gap_that_will_last_gives_its_pages_first_and_the_shared_head_last() -> None:
    world = World()
    assert [world.evict(1)[0] for _ in range(6)] == [201, 200, 103, 102, 101, 100]


def test_a_declared_priority_reaches_retention() -> None:
    world = World()
    index = world.order.index(world.table["slow"], 0.0)
    other = ProgramTable(POOL)
    program = opened(other, "slow", priority=3)
    program.gap, program.unshared_tokens, program.held_tokens = world.table["slow"].gap, 8, 16
    other.estimator = world.table.estimator
    favoured = RetentionOrder(other, lambda start, end: 0.01 * (end - start), extra_wait_s=lambda: 0.1).index(
        program, 0.0
    )
    assert favoured == pytest.approx(8 * index)


def test_a_program_that_returned_is_kept_before_those_that_wait() -> None:
    world = World()
    world.table.queue("slow", 9, 1.0)
    assert world.order.hazard(world.table["slow"], 1.0) > world.order.hazard(world.table["quick"], 60.0)


def test_a_hint_makes_a_gap_longer_or_shorter() -> None:
    world = World()
    short, long = world.table["quick"], world.table["slow"]
    assert short.gap is not None and long.gap is not None
    plain = world.order.hazard(short, 0.0)
    short.gap.expected_s, long.gap.expected_s = 500.0, 0.05
    assert world.order.hazard(short, 0.0) < plain < 2 * world.order.hazard(long, 0.0) * 500


def test_random_events_keep_the_table_and_the_tree_sound() -> None:
    choose, world = random.Random(3), World()
    names = [f"p{number}" for number in range(12)]
    running: dict[int, tuple[str, Lease]] = {}
    requests, pages = iter(range(1000, 9000)), iter(range(10_000, 99_000))
    for _ in range(3000):
        world.now += choose.random()
        name, verb = choose.choice(names), choose.randrange(5)
        if verb == 0 and not any(each == name for each, _ in running.values()):
            program = opened(world.table, name, world.now, workload="w")
            request = next(requests)
            cursor = program.cursor
            lease = world.tree.lease(cursor if cursor is not None else world.tree.match([0] * 8))
            world.table.queue(name, request, world.now)
            running[request] = (name, lease)
        elif verb == 1 and running:
            shares = [share(each, request) for request, (each, _) in running.items()]
            world.table.step(shares, 0.1, world.now)
        elif verb == 2 and running:
            request = choose.choice(list(running))
            each, lease = running.pop(request)
            world.tree.insert(lease, [choose.randrange(3)] * 4, [next(pages)], owner=each)
            lease.release()
            world.table.end_turn(each, request, lease.cursor, lease.num_tokens, unshared_tokens(lease.cursor, each))
            world.table.gap(each, "tool", world.now, ("w", "grep"))
            world.tree.attach(each, lease.cursor)
        elif verb == 3:
            world.tree.evict(choose.randrange(4), world.order)
        elif verb == 4 and world.table.find(name) and not any(each == name for each, _ in running.values()):
            world.tree.detach(name)
            world.table.close(name)
        assert all(program.state.is_gap == (program.gap is not None) for program in world.table)
    check(world.tree, [lease for _, lease in running.values()])
