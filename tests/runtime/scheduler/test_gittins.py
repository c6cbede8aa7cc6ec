"""The index follows the distribution: it turns into least attained service or into first come, first served."""

import pytest

from ramet.runtime.scheduler.fairshare import VirtualTime, predicted_cost
from ramet.runtime.scheduler.gittins import MIN_COMPLETIONS, ClassHistory, GittinsTable, blind_index, service_level


def test_one_size_is_one_over_what_is_left() -> None:
    table = GittinsTable([10.0] * 5)
    assert table.index(0.0, rebuild=1e-9) == pytest.approx(0.1)
    assert table.index(6.0, rebuild=1e-9) == pytest.approx(0.25)


def test_two_sizes_by_hand() -> None:
    table = GittinsTable([1.0, 9.0])
    assert table.index(0.0) == pytest.approx(0.5)  # stop at 1: half of them end, one second each
    assert table.index(1.0) == pytest.approx(1 / 8)


def test_falling_hazard_makes_it_least_attained_service() -> None:
    table = GittinsTable([1.0] * 90 + [1000.0] * 10)
    assert table.index(0.0) > table.index(2.0)


def test_rising_hazard_makes_it_first_come_first_served() -> None:
    table = GittinsTable([9.0, 10.0, 11.0])
    assert table.index(0.0) < table.index(5.0) < table.index(8.0)


def test_programs_that_still_run_count_as_larger_than_what_they_have_had() -> None:
    table = GittinsTable([1.0, 3.0], unfinished=[2.0])  # a third ends at 1; the third that is left in doubt goes to 3
    assert table.index(1.0, rebuild=1e-9) == pytest.approx(1 / 2)
    assert table.index(0.0, rebuild=1e-9) == pytest.approx(max((1 / 3) / 1, 1 / (1 / 3 + 2 / 3 * 3)))


def test_a_young_class_with_long_programs_still_running_does_not_look_short() -> None:
    ended = [1.0, 2.0, 3.0, 4.0]
    assert GittinsTable(ended, unfinished=[5.0] * 12).index(1.0) < 0.5 * GittinsTable(ended).index(1.0)


def test_what_must_be_rebuilt_first_lowers_it() -> None:
    table = GittinsTable([5.0, 10.0])
    assert table.index(0.0, rebuild=20.0) < table.index(0.0)


def test_beyond_all_that_was_seen_it_stays_finite_and_low() -> None:
    assert 0 < GittinsTable([1.0, 2.0]).index(50.0) <= 1.0


def test_a_class_knows_nothing_before_a_few_have_ended() -> None:
    history = ClassHistory()
    for number in range(MIN_COMPLETIONS):
        assert history.index(0.0) is None
        history.complete(1.0 + number)
    assert history.index(0.0) is not None and history.mean == pytest.approx((1 + MIN_COMPLETIONS) / 2)


def test_favour_counts_the_end_of_a_short_program_for_more() -> None:
    plain, favouring = GittinsTable([1.0, 16.0]), GittinsTable([1.0, 16.0], favour=0.5)
    assert favouring.index(0.0) == pytest.approx(plain.index(0.0))  # the quantum of 1 ends programs of size 1
    assert favouring.index(1.0) == pytest.approx(plain.index(1.0) / 4.0)  # what ends after it is of size 16


def test_of_programs_without_memory_the_one_that_had_least_goes_first() -> None:
    ended = [0.5 * 1.1**place for place in range(60)]
    table = GittinsTable(ended, favour=0.5)
    ranks = [table.index(attained) for attained in (0.0, 5.0, 20.0, 60.0)]
    assert ranks == sorted(ranks, reverse=True)


def test_a_guess_stands_in_one_line_with_what_is_known() -> None:
    known = GittinsTable([8.0] * 5, favour=0.5)
    assert known.index(0.0) == pytest.approx(blind_index(8.0, 0.5))


def test_levels_double() -> None:
    assert [service_level(a, 1.0) for a in (0, 0.9, 1, 1.9, 2, 3.9, 4, 8)] == [0, 0, 1, 1, 2, 2, 3, 4]


def test_a_very_large_program_falls_behind_its_fair_share_in_the_end() -> None:
    """Served alone for ever it must not stay due for ever: its finish comes nearer than virtual time moves on."""
    assert predicted_cost(10.0, 2.0) == 10.0
    virtual = VirtualTime()
    share, mean, served = virtual.join(), 10.0, 0.0
    for _ in range(11):
        assert virtual.now <= share.finish(predicted_cost(mean, served)) + mean
        virtual.advance(10.0)
        served += 10.0
    assert virtual.now > share.finish(predicted_cost(mean, served)) + mean


def test_virtual_time_shares_by_weight() -> None:
    virtual = VirtualTime()
    light, heavy = virtual.join(1.0), virtual.join(3.0)
    virtual.advance(8.0)
    assert virtual.now == 2.0
    assert heavy.finish(6.0) == 2.0 < light.finish(6.0)
    virtual.leave(heavy)
    virtual.advance(1.0)
    assert virtual.now == 3.0
    virtual.leave(light)
    virtual.advance(5.0)
    assert virtual.now == 3.0, "nobody is there to share"
