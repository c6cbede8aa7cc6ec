"""Tails are found by what they hold, kept once, and go oldest first."""

import random

import numpy as np

from ramet.radix.key import common_prefix
from ramet.runtime.scheduler.tails import MAX_LOOKED_AT, Tail, Tails


def tail(key: int | str, page: int, *tokens: int) -> Tail:
    return Tail(key, page, np.asarray(tokens, np.int32))


def ids(*tokens: int) -> np.ndarray:
    return np.asarray(tokens, np.int32)


def test_the_one_with_most_in_common_is_found() -> None:
    tails = Tails()
    for each in (tail(7, 1, 1, 2), tail(7, 2, 1, 3, 4), tail(8, 3, 1, 3, 4, 5)):
        assert tails.keep(each) == []
    match = tails.find(7, ids(1, 3, 4, 9))
    assert (match.tail.page, match.num_tokens) == (2, 3)
    assert tails.find(7, ids(1, 2, 3)).num_tokens == 2
    assert tails.find(7, ids(5)) is None and tails.find(9, ids(1)) is None


def test_what_another_tail_holds_already_is_not_kept() -> None:
    tails = Tails()
    long, short, longer = tail("n", 1, 1, 2, 3), tail("n", 2, 1, 2), tail("n", 3, 1, 2, 3, 4)
    assert tails.keep(long) == [] and tails.keep(short) == [2]
    assert tails.keep(tail("n", 4, 1, 2, 3)) == [4]
    assert tails.keep(longer) == [1] and len(tails) == 1
    assert tails.find("n", ids(1, 2)).tail is longer


def test_the_oldest_goes_first_and_the_spared_one_stays() -> None:
    tails = Tails()
    kept = [tail(1, page, page) for page in range(4)]
    for each in kept:
        tails.keep(each)
    assert tails.take_oldest(kept[0]) is kept[1]
    assert tails.take_oldest(None) is kept[0]
    assert tails.take_behind(1) == kept[2:] and len(tails) == 0 and tails.take_oldest(None) is None


def test_going_on_from_a_tail_finds_it_among_thousands() -> None:
    chooser = random.Random(0)
    tails = Tails()
    contents = {tuple(chooser.randint(0, 3) for _ in range(12)) for _ in range(3000)}
    for page, content in enumerate(contents):
        tails.keep(tail("root", page, *content))
    assert len(tails) == len(contents) > 10 * MAX_LOOKED_AT
    for content in contents:
        match = tails.find("root", ids(*content, 1, 2, 3))
        assert match.num_tokens >= 12 and common_prefix(match.tail.tokens, ids(*content)) == 12
