"""Number languages against the arithmetic they stand for."""

import re
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.constrained.json_schema.numbers import language, literals
from ramet.constrained.json_schema.records import Numbers

DECIMALS = st.decimals(-200, 200, places=2).map(Fraction)
STEPS = st.sampled_from([Fraction(1), Fraction(2), Fraction(7), Fraction(1, 2), Fraction(3, 20), Fraction(1, 100)])
RECORDS = st.builds(
    Numbers,
    low=st.none() | DECIMALS,
    high=st.none() | DECIMALS,
    low_open=st.booleans(),
    high_open=st.booleans(),
    step=st.none() | STEPS,
    not_steps=st.frozensets(STEPS, max_size=1),
    excluded=st.frozensets(DECIMALS, max_size=2),
)
TEXTS = st.from_regex(re.compile(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?"), fullmatch=True)


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.lists(TEXTS, min_size=1, max_size=30))
def test_accepts_exactly_the_numbers_of_the_record(record: Numbers, texts: list[str]) -> None:
    automaton = language(record)
    for text in texts:
        is_number = record.accepts(Fraction(text))
        accepted = automaton.matches(text.encode())
        written_whole = record.step is not None and record.step.denominator == 1
        assert accepted <= is_number, text
        assert accepted or not is_number or (written_whole and "." in text), text


def test_never_writes_what_json_forbids() -> None:
    automaton = language(Numbers())
    for text in ["01", "+1", "1.", ".5", "1e", "--1", "", "-", "0x1", "1_0", "NaN"]:
        assert not automaton.matches(text.encode()), text


def test_digits_are_bounded_unless_a_bound_needs_more() -> None:
    assert not language(Numbers()).matches(b"1" * 25)
    huge = 10**40
    assert language(Numbers(low=Fraction(huge), step=Fraction(1))).matches(str(huge).encode())


def test_exponents_where_only_the_sign_matters() -> None:
    positive = language(Numbers(low=Fraction(0), low_open=True))
    assert positive.matches(b"1e-7")
    assert not positive.matches(b"0e5")
    assert not positive.matches(b"-1e3")
    assert not language(Numbers(low=Fraction(1))).matches(b"1e3")


def test_spellings_of_constants() -> None:
    assert literals(1) == ["1"]
    assert literals(0.5) == ["0.5"]
    assert literals(-2.0) == ["-2", "-2.0"]
