"""The scheduler's own time: under a millisecond a step with a thousand live programs."""

import itertools
import random
import statistics
import time

from tests.runtime.scheduler.driver import GREEDY, Driver

from ramet.radix.tree import RadixTree
from ramet.runtime.scheduler.programs import ProgramTable, reader_name
from ramet.runtime.scheduler.retention import RetentionOrder
from ramet.runtime.scheduler.sequence import Request
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.scheduler.waiting import WaitingRoom
from ramet.runtime.types import GenerateSpec, ProgramSpec, Queued, SampledRow, StepPlan, StepResult
from ramet.testing import ManualClock

NUM_PROGRAMS, NUM_SLOTS = 1000, 64


def instantly(plan: StepPlan) -> StepResult:
    return StepResult([SampledRow(row.sequence_id, (65,) if row.num_sampled else ()) for row in plan.rows])


def test_a_step_costs_less_than_a_millisecond_with_a_thousand_programs() -> None:
    """Programs take turns: 64 decode, some end in each step, others come back with 30 new tokens each."""
    chooser = random.Random(0)
    driver = Driver(num_pages=100_000, max_running=NUM_SLOTS, checks=False)
    scheduler, ids, owner = driver.scheduler, itertools.count(), {}
    rows = [TokenRow([*range(65, 90)] * 40) for _ in range(NUM_PROGRAMS)]
    cursors = [None] * NUM_PROGRAMS
    resting = list(range(NUM_PROGRAMS))

    def come_back() -> None:
        program = resting.pop(0)
        rows[program].extend(chooser.randrange(65, 90) for _ in range(30))
        request_id = next(ids)
        owner[request_id] = program
        scheduler.submit(
            Request(
                request_id=request_id,
                tokens=rows[program],
                spec=GenerateSpec(max_tokens=chooser.randrange(8, 32), sampling=GREEDY),
                program=ProgramSpec(program_id=str(program)),
                cursor=cursors[program],
            )
        )

    for _ in range(NUM_SLOTS):
        come_back()
    milliseconds = []
    for _ in range(600):
        began = time.thread_time()
        plan = scheduler.schedule()
        planned = time.thread_time()
        result = instantly(plan)
        computed = time.thread_time()
        scheduler.commit(result)
        ended = scheduler.take_ended()
        milliseconds.append(1e3 * (planned - began + time.thread_time() - computed))
        for each in ended:
            program = owner.pop(each.seq.id)
            cursors[program] = each.cursor
            resting.append(program)
            come_back()
    assert len(resting) == NUM_PROGRAMS - NUM_SLOTS
    # the lower quartile: the machine has other things to do, the scheduler has not
    assert statistics.quantiles(milliseconds[100:], n=4)[0] < 1.0


def test_newcomers_learn_their_places_without_a_walk_along_the_line() -> None:
    driver = Driver(num_pages=4, max_running=1, checks=False)
    places = [driver.submit([*range(65, 85)], program=str(number)) for number in range(50)]
    driver.step()
    told = {place: event.position for place in places for event in driver.events[place] if isinstance(event, Queued)}
    assert [told[place] for place in places[1:]] == list(range(49))


def test_one_refused_program_costs_a_step_one_look_however_many_stand_behind_it() -> None:
    driver = Driver(num_pages=16, max_running=8, checks=False)
    scheduler = driver.scheduler
    scheduler.admission = OneIn(scheduler.admission)
    for number in range(200):
        driver.submit([65 + number % 20, *range(65, 85)], program=str(number))
    driver.step()
    looks = []
    look = scheduler.cache.look
    scheduler.cache.look = lambda seq: looks.append(seq) or look(seq)
    driver.step()
    assert len(looks) <= 1


class OneIn:
    """Lets in whoever comes while nobody runs, and lets others pass those that it refused."""

    def __init__(self, inner) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def may_start(self, *_: object) -> bool:
        return False

    def lets_pass(self, seq) -> bool:
        return True


def test_ranks_are_made_anew_for_gaps_that_have_changed_and_not_for_all_waiting_programs() -> None:
    """A thousand programs wait since long; evictions every 20 ms for two seconds."""
    clock = ManualClock()
    tree, table = RadixTree(page_size=1, clock=clock.now), ProgramTable(100_000)
    retention = RetentionOrder(table, lambda start, end: 1e-3 * (end - start))
    for number in range(1000):
        name = str(number)
        table.open(ProgramSpec(program_id=name), 0.0)
        table.gap(name, "tool", 0.0)
        lease = tree.lease(tree.match([]))
        tree.insert(lease, [number, *range(9)], list(range(10 * number, 10 * number + 10)), owner=name)
        tree.attach(reader_name(name, 0), lease.cursor)
        lease.release()
    clock.advance(100.0)
    tree.evict(1, retention)
    num_first = tree.num_ranked
    for _ in range(100):
        clock.advance(0.02)
        tree.evict(1, retention)
    assert num_first >= 1000 and tree.num_ranked - num_first < 200
    table.queue("999", 1, clock.now())  # it comes back: its KV is wanted now
    tree.revalue(reader_name("999", 0))
    tree.evict(tree.num_evictable_pages - 10, retention)
    assert tree.reader_depth(reader_name("999", 0)) == 10


def test_a_long_line_is_ranked_again_a_slice_a_step_and_wholly_within_its_time() -> None:
    ranked: list[int] = []

    class Ageing:
        refresh_s, reads_cache, epoch = 1.0, False, 0

        def rank(self, seq, now_s: float) -> tuple[float, ...]:
            ranked.append(seq.id)
            return (-now_s, seq.id)

    room, driver = WaitingRoom(Ageing()), Driver(num_pages=4)
    for number in range(320):
        driver.submit([66, 67], program=str(number))
    for seq in driver.scheduler._waiting:
        room.add(seq, 0.0)
    ranked.clear()
    room.rank_again(0.0)
    ranked.clear()
    most = 0
    for step in range(1, 56):
        before = len(ranked)
        if room.is_stale(0.02 * step):
            room.rank_again(0.02 * step)
        most = max(most, len(ranked) - before)
    assert most <= 40 and len(set(ranked)) == 320 and len(ranked) <= 360
    assert [seq.rank for seq in room] == sorted(seq.rank for seq in room)
