"""A declared deadline reaches order and retention, and one that can't be met is refused when the program comes."""

import pytest

from ramet.runtime.scheduler.admission import Admission
from ramet.runtime.scheduler.deadlines import WORTH, needs_s, presses, too_late
from ramet.runtime.scheduler.policies.gittins import gittins
from ramet.runtime.scheduler.programs import Program, ProgramTable, StepShare
from ramet.runtime.scheduler.retention import RetentionOrder
from ramet.runtime.scheduler.sequence import Request, Sequence
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.scheduler.working_set import ProgramAdmission, WorkingSetConfig
from ramet.runtime.types import GenerateSpec, ProgramSpec
from ramet.testing import ManualClock

POOL = 1000


def opened(table: ProgramTable, name: str, now: float, deadline_s: float | None = None) -> Program:
    return table.open(ProgramSpec(program_id=name, deadline_s=deadline_s), now)


def turn(table: ProgramTable, name: str, request: int, at: float, seconds: float) -> None:
    table.queue(name, request, at)
    table.step([StepShare(name, request, 100, 10, True)], seconds, at + seconds)
    table.end_turn(name, request, None, 100, 50)


def finished(table: ProgramTable, name: str, seconds: float) -> None:
    opened(table, name, 0.0)
    turn(table, name, hash(name), 0.0, seconds)
    table.close(name)


def sequence(spec: ProgramSpec, request: int, now: float, num_tokens: int = 1) -> Sequence:
    row = TokenRow([1] * num_tokens)
    return Sequence(Request(request_id=request, tokens=row, spec=GenerateSpec(), program=spec), now)


def test_what_a_program_needs_is_what_its_class_took_less_what_it_has_had() -> None:
    table = ProgramTable(POOL)
    program = opened(table, "p", 0.0)
    assert needs_s(table, program) == 1.0, "nothing is known"
    finished(table, "done", 10.0)
    assert needs_s(table, program) == pytest.approx(10.0)
    turn(table, "p", 1, 0.0, 4.0)
    table.gap("p", "tool", 4.0)
    table.queue("p", 2, 7.0)
    assert needs_s(table, program) == pytest.approx(10.0 - 4.0 - 3.0), "a gap is no waiting in line"
    table.step([StepShare("p", 2, 100, 10, True)], 30.0, 37.0)
    assert needs_s(table, program) == pytest.approx(1.0)


def test_it_presses_from_twice_what_it_needs_until_it_is_past() -> None:
    table = ProgramTable(POOL)
    finished(table, "done", 10.0)
    program = opened(table, "p", 100.0, deadline_s=50.0)
    assert [presses(table, program, now) for now in (100.0, 129.0, 131.0, 149.0, 150.0)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert not presses(table, opened(table, "easy", 100.0), 131.0)


def test_a_pressing_program_goes_before_its_betters_and_after_the_starving() -> None:
    table = ProgramTable(POOL)
    finished(table, "done", 10.0)
    order = gittins(table)
    ranks = {}
    for request, (name, deadline_s) in enumerate((("late", 12.0), ("later", 15.0), ("none", None), ("far", 500.0))):
        program = opened(table, name, 0.0, deadline_s)
        table.queue(name, request, 0.0)
        ranks[name] = order.rank(sequence(program.spec, request, 0.0), 1.0)
    assert ranks["late"] < ranks["later"] < ranks["none"]
    assert ranks["far"][0] == ranks["none"][0]
    table.virtual.advance(1e9)
    assert order.rank(sequence(table["none"].spec, 2, 0.0), 1.0) < ranks["late"], "who starves is before all"


def test_its_waiting_kv_is_worth_more_while_it_presses() -> None:
    table = ProgramTable(POOL)
    finished(table, "done", 10.0)
    order = RetentionOrder(table, lambda start, end: 0.01 * (end - start))
    for name, deadline_s in (("plain", None), ("pressing", 15.0)):
        opened(table, name, 0.0, deadline_s)
        turn(table, name, hash(name), 0.0, 1.0)
        table.gap(name, "tool", 1.0)
    worth = {name: order.index(table[name], 2.0) for name in ("plain", "pressing")}
    assert worth["pressing"] == pytest.approx(WORTH * worth["plain"])


def test_a_later_request_of_a_program_brings_its_own_deadline_and_priority() -> None:
    table = ProgramTable(POOL)
    program = opened(table, "p", 0.0, deadline_s=5.0)
    table.open(program.spec, 3.0)
    assert program.due_s == 5.0, "the same spec says nothing new"
    table.open(ProgramSpec(program_id="p", deadline_s=5.0, priority=2), 100.0)
    assert program.due_s == 105.0 and program.weight == 4.0


def admission_of(table: ProgramTable, clock: ManualClock, pace: float | None) -> Admission:
    retention = RetentionOrder(table, lambda start, end: 0.01 * (end - start))
    return ProgramAdmission(WorkingSetConfig(), table, retention, clock, 16, prefill_s_per_token=lambda: pace)


def test_a_deadline_that_the_prompt_alone_breaks_is_refused_with_the_reason() -> None:
    table, clock = ProgramTable(POOL), ManualClock()
    program = opened(table, "p", 0.0, deadline_s=2.0)
    table.queue("p", 1, 0.0)
    seq = sequence(program.spec, 1, 0.0, 500)
    refused = admission_of(table, clock, 0.01).refusal(seq, 500)
    assert refused is not None and refused.status == 429 and refused.retry_after_s == pytest.approx(3.0)
    assert "deadline in 2 s" in refused.message and "500 tokens" in refused.message and "5 s" in refused.message
    assert admission_of(table, clock, 0.01).refusal(seq, 100) is None, "the rest is cached"
    assert admission_of(table, clock, None).refusal(seq, 500) is None, "the pace is not known yet"


def test_a_program_that_was_let_in_is_not_refused_later() -> None:
    table = ProgramTable(POOL)
    program = opened(table, "p", 0.0, deadline_s=2.0)
    turn(table, "p", 1, 0.0, 1.0)
    table.queue("p", 2, 1.0)
    assert too_late(program, 10_000, 0.01, 1.5) is None
