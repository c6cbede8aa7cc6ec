"""Gap lengths are learned from finished and from running gaps, and read as an effective hazard."""

import numpy as np
import pytest

from ramet.runtime.scheduler.estimator import (
    EDGES,
    NUM_BINS,
    GapEstimator,
    bin_of,
    first_words,
    tabulate,
    tool_key,
)
from ramet.runtime.scheduler.retention import elapsed_bin


def test_knowing_nothing_it_returns_the_prior_one_over_one_plus_t() -> None:
    table = GapEstimator().table(("agent",))
    middle = bin_of(1.0)
    assert table.survival[middle] == pytest.approx(1 / (1 + EDGES[middle]), rel=1e-6)
    assert table.effective[0] == pytest.approx(1.0, rel=0.05)  # dropping at once would be the mistake


def test_a_hazard_that_is_zero_at_first_still_holds_the_gap() -> None:
    estimator = GapEstimator()
    for _ in range(500):
        estimator.learn(("read",), 0.2)
    table = estimator.table(("read",))
    assert table.ends_in_bin[0] < 0.01, "no tool returns in its first milliseconds"
    assert table.effective[0] > 3.0, "and yet nearly all are back within 0.2 s"
    assert table.effective[bin_of(5.0)] < 1.0


def test_a_gap_in_flight_is_exposure_and_no_event() -> None:
    estimator = GapEstimator()
    for _ in range(20):
        estimator.learn(("t",), 1.0)
    before = estimator.table(("t",)).survival[bin_of(60.0)]
    flying = GapEstimator()
    for number in range(20):
        flying.learn(("t",), 1.0)
        flying.begin(f"open-{number}", ("t",), now_s=0.0)
    after = flying.table(("t",), now_s=60.0).survival[bin_of(60.0)]
    assert after > 2 * before


def test_an_end_gives_its_length_once() -> None:
    estimator = GapEstimator()
    estimator.begin("gap", ("t", "x"), 10.0)
    assert estimator.end("gap", 12.5) == 2.5
    assert estimator.end("gap", 13.0) is None
    assert estimator.num_learned(("t",)) == estimator.num_learned(()) == 1


def test_a_new_key_leans_on_its_tool() -> None:
    estimator = GapEstimator()
    for _ in range(300):
        estimator.learn(("shell", "ls"), 0.02)
        estimator.learn(("edit",), 30.0)
    unseen = estimator.table(("shell", "cat"))
    assert unseen.survival[bin_of(1.0)] < 0.5 < estimator.table(("edit",)).survival[bin_of(1.0)]


def test_old_counts_fade() -> None:
    estimator = GapEstimator()
    for _ in range(3000):
        estimator.learn(("t",), 100.0)
    for _ in range(6000):
        estimator.learn(("t",), 0.1)
    assert estimator.table(("t",)).survival[bin_of(1.0)] < 0.2, "3,000 of 9,000, but three half lives old"


def test_bins_agree_however_they_are_found() -> None:
    for elapsed in [0.0, 0.004, 0.00501, 0.3, 1.0, 59.9, 3599.0, 3601.0, 1e6, *(EDGES[1:] * 1.0001)]:
        assert elapsed_bin(elapsed) == bin_of(elapsed)


def test_exponential_gaps_have_the_same_hazard_at_each_age() -> None:
    widths = np.append(np.diff(EDGES), 3600.0)
    table = tabulate(1.0 - np.exp(-widths / 20.0))
    inside = slice(bin_of(0.1), bin_of(50.0))
    assert np.allclose(table.effective[inside], 1 / 20, rtol=0.15)
    assert len(table.survival) == NUM_BINS


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("cd /src && git log --oneline", "git log"),
        ("python -m pytest -q", "python -m pytest"),
        ("python3 run.py", "python3"),
        ("A=1 B=2 /usr/bin/ls -l", "ls"),
        ("pip install x", "pip install"),
        ("make", "make"),
        ("", ""),
    ],
)
def test_the_telling_word_of_a_command(command: str, words: str) -> None:
    assert first_words(command) == words
    assert tool_key("agent", "shell", command) == (("agent", "shell", words) if words else ("agent", "shell"))
