"""What goes to disk, what comes back, and when computing is the better way."""

import pytest

from ramet.runtime.kv.tier import DiskTier, TierCosts
from ramet.runtime.types import Moved

KEYS = [bytes([number]) * 16 for number in range(40)]


def tier(stored: set[bytes] | None = None, costs: TierCosts | None = None, page_bytes: int = 1) -> DiskTier:
    return DiskTier(stored if stored is not None else set(), "m", 16, page_bytes, costs)


@pytest.mark.parametrize(
    ("read_s", "prefill_s", "num_ahead", "reloads"),
    [
        (0.001, 0.001, 0, True),  # 16 ms to compute a page, 1 ms to read it
        (0.020, 0.001, 0, False),  # a slow disk
        (0.001, 0.00001, 0, False),  # a fast model
        (0.001, 0.001, 60, True),  # 4 pages behind 60 others: 64 ms and 64 to compute: as soon as it is not slower
        (0.001, 0.001, 61, False),
        (None, 0.001, 0, True),  # not known yet: trying is measuring
        (0.001, None, 0, True),
    ],
)
def test_pages_are_read_where_that_is_faster(
    read_s: float | None, prefill_s: float | None, num_ahead: int, reloads: bool
) -> None:
    subject = tier(set(KEYS), TierCosts(read_s_per_page=read_s, prefill_s_per_token=prefill_s))
    if num_ahead:
        subject.read(range(num_ahead), [KEYS[0]] * num_ahead)
    is_tie = (read_s, num_ahead) == (0.001, 60)
    assert subject.num_worth_reading(KEYS[:4]) == (4 if reloads and not is_tie else 0)


def test_only_the_leading_run_that_is_there_is_read() -> None:
    subject = tier({KEYS[0], KEYS[1], KEYS[3]})
    assert subject.num_worth_reading(KEYS[:4]) == 2
    assert subject.num_worth_reading(KEYS[2:4]) == 0
    assert subject.num_worth_reading([]) == 0


def test_measurements_move_the_means() -> None:
    costs = TierCosts()
    costs.note_read(1.0)
    costs.note_read(2.0)
    costs.note_prefill(10, 1.0)
    assert costs.read_s_per_page == pytest.approx(1.1) and costs.prefill_s_per_token == pytest.approx(0.1)


def test_what_is_at_rest_is_written_when_idle_oldest_first_and_once() -> None:
    subject = tier({KEYS[2]})
    subject.rests([10, 11, 12], KEYS[:3])
    subject.rests([10], KEYS[:1])  # used again: youngest now
    subject.write_some()
    moves = subject.take_moves()
    assert [(move.page, move.key, move.direction) for move in moves] == [
        (11, KEYS[1], "to_disk"),
        (10, KEYS[0], "to_disk"),
    ]
    assert subject.is_behind
    subject.rests([10], KEYS[:1])  # being written
    for move in moves:
        subject.note(Moved(move.slot, True))
    assert not subject.is_behind and subject.statistics().written_pages_total == 2


def test_what_is_evicted_first_is_written_then_if_the_line_is_short() -> None:
    subject = tier(page_bytes=16 * 2**20)  # four fit into the line
    subject.rests(range(6), KEYS[:6])
    subject.leaves([0, 1, 2, 3, 4, 99])
    assert len(subject.take_moves()) == 4
    counts = subject.statistics()
    assert (counts.dropped_pages_total, counts.num_unwritten, counts.num_in_flight) == (1, 1, 4)
    subject.write_some()
    assert subject.take_moves() == []


def test_after_a_failed_step_nothing_of_the_pool_is_written() -> None:
    subject = tier(set(KEYS[5:]))
    subject.rests([1, 2], KEYS[:2])
    subject.leaves([1])
    (slot,) = subject.read([7], KEYS[5:6])
    subject.distrust()
    assert [move.slot for move in subject.take_moves()] == [slot]
    assert subject.is_reading and subject.statistics().num_unwritten == 0
    subject.note(Moved(slot, False))
    assert not subject.is_reading and not subject.is_behind
