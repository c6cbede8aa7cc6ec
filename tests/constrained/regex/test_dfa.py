"""The algebra on languages small enough to list."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.constrained.regex import dfa as regular

TEXTS = ["".join(p) for n in range(5) for p in itertools.product("ab", repeat=n)]
LANGUAGES = st.sets(st.sampled_from(TEXTS), max_size=6)


def listed(language: regular.Dfa) -> set[str]:
    return {text for text in TEXTS if language.matches(text)}


@given(LANGUAGES, LANGUAGES)
def test_algebra_is_that_of_sets(left: set[str], right: set[str]) -> None:
    a, b = regular.from_texts(left), regular.from_texts(right)
    assert listed(regular.union(a, b)) == left | right
    assert listed(regular.intersection(a, b)) == left & right
    assert listed(regular.difference(a, b)) == left - right
    assert listed(regular.symmetric_difference(a, b)) == left ^ right
    assert listed(regular.complement(a)) == set(TEXTS) - left
    assert regular.is_subset(a, b) == (left <= right)
    assert regular.equivalent(a, b) == (left == right)
    assert regular.enumerate_finite(a, 100) == sorted(left)
    assert a.is_empty == (not left)


def test_minimal_automata_of_one_finite_language_are_equal() -> None:
    assert regular.from_texts(["red", "bed", "reed"]) == regular.from_texts(["reed", "red", "bed"])
    assert len(regular.from_texts(["ared", "bred", "cred"]).rows) == 5  # the common ending is shared


def test_infinite_or_long_languages_are_not_listed() -> None:
    assert regular.enumerate_finite(regular.any_text(), 10) is None
    assert regular.enumerate_finite(regular.length_between(0, 3), 1000) is None
    assert not regular.is_finite(regular.complement(regular.literal("a")))


def test_lengths_meet_the_limit_of_states() -> None:
    with pytest.raises(regular.TooManyStates):
        regular.length_between(0, 100_000)
    assert regular.length_between(2, None).matches("éa") and not regular.length_between(2, None).matches("é")


def test_shortest_text() -> None:
    assert regular.shortest(regular.from_texts(["abc", "xy"])) == [ord("x"), ord("y")]
    assert regular.shortest(regular.nothing()) is None
