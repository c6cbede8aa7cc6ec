"""Who is let in: by room and by turn, never by size; and nobody who is in waits for one who is not."""

import pytest

from ramet.runtime.scheduler.programs import Program, ProgramTable, StepShare
from ramet.runtime.scheduler.retention import RetentionOrder
from ramet.runtime.scheduler.sequence import Request, Sequence
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.scheduler.working_set import ProgramAdmission, WorkingSetConfig
from ramet.runtime.types import GenerateSpec, ProgramSpec
from ramet.testing import ManualClock

PAGE, NUM_PAGES = 10, 100


class Door:
    """An admission over a pool of 100 pages of which theta lets 60 be wanted."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.table = ProgramTable(PAGE * NUM_PAGES)
        retention = RetentionOrder(self.table, lambda start, end: 0.001 * (end - start))
        self.admission = ProgramAdmission(WorkingSetConfig(theta=0.6), self.table, retention, self.clock, PAGE)
        self._num_requests = 0

    def turn(self, name: str, num_pages: int) -> Sequence:
        """A program's next turn comes."""
        self._num_requests += 1
        program = ProgramSpec(program_id=name)
        self.table.open(program, self.clock.now())
        self.table.queue(name, self._num_requests, self.clock.now())
        tokens = TokenRow([1] * (num_pages * PAGE))
        request = Request(request_id=self._num_requests, tokens=tokens, spec=GenerateSpec(), program=program)
        return Sequence(request, self.clock.now())

    def lets_in(self, seq: Sequence, num_leased: int = 0) -> bool:
        return self.admission.may_start(seq, seq.num_tokens // PAGE, num_leased, NUM_PAGES - num_leased, NUM_PAGES)


@pytest.fixture
def door() -> Door:
    return Door()


def test_what_is_wanted_and_the_newcomer_must_fit_in_theta(door: Door) -> None:
    assert door.lets_in(door.turn("first", 50))
    assert not door.lets_in(door.turn("second", 20), num_leased=50)


def test_behind_one_that_is_refused_nobody_gets_in_for_being_smaller(door: Door) -> None:
    large, small = door.turn("large", 30), door.turn("small", 2)
    assert not door.lets_in(large, num_leased=50)
    assert not door.lets_in(small, num_leased=50)
    door.clock.advance(0.1)
    assert door.lets_in(small, num_leased=50), "a step in which it stands first is its own"


def test_programs_inside_pass_one_that_is_refused(door: Door) -> None:
    inside = door.turn("inside", 10)
    assert door.lets_in(inside)
    outside, third = door.turn("outside", 60), door.turn("third", 60)
    assert not door.lets_in(outside, num_leased=40) and door.admission.lets_pass(outside)
    assert not door.lets_in(third, num_leased=40) and door.admission.lets_pass(third)
    again = door.turn("inside", 10)
    assert door.lets_in(again, num_leased=40)
    assert not door.admission.lets_pass(again), "if pages are lacking for one inside, the line waits for it"


def test_one_that_starves_waits_for_room_too_and_holds_up_nobody_inside(door: Door) -> None:
    late = starving(door)
    turn = door.turn("late", 30)
    assert door.table.is_starving(late)
    assert not door.lets_in(turn, num_leased=50) and door.admission.lets_pass(turn)
    assert not door.lets_in(door.turn("new", 2), num_leased=50), "what is free from now on is kept for it"


def starving(door: Door) -> Program:
    """A program that fell behind while another had everything."""
    door.turn("done", 1)
    door.table.step([StepShare("done", 1, 10, 10, True)], 1.0, 1.0)
    door.table.close("done")
    late = door.table.open(ProgramSpec(program_id="late"), 1.0)
    door.turn("hog", 1)
    for second in range(20):
        door.table.step([StepShare("hog", 2, 10, 10, True)], 1.0, 2.0 + second)
    return late
