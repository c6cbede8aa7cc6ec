"""Outlines' output types mean here what they mean there: its own regex is the judge on samples."""

import enum
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from outlines import types
from outlines.types import dsl

from ramet.constrained.compile import compile
from ramet.constrained.spec import Choice, JsonSchema, Lark
from ramet.constrained.terms import spec_of
from ramet.runtime.errors import BadRequest, GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from vocabularies import byte_vocabulary

VOCABULARY = byte_vocabulary()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Person:
    name: str
    age: int


def accepts(output_type: Any, text: str) -> bool:
    return compile(spec_of(output_type), VOCABULARY).initial().advance_bytes(text.encode()).accepting


TERMS = [
    types.regex("[0-9]{3}") + "-" + types.optional("x"),
    types.either("cat", "dog") + types.exactly(2, types.digit),
    types.at_least(2, "ab"),
    types.at_most(2, types.either("a", "b")),
    types.between(1, 2, types.integer),
    types.zero_or_more("a") + types.one_or_more("b"),
    types.email,
    types.ipv4,
    types.date,
    types.uuid4,
    types.Choice(["yes", 7]),
    Literal["a", "b.c"],
    Colour,
    int,
    float,
    int | bool,
]
SAMPLES = [
    *("123-", "123-x", "12-", "cat12", "dog1", "abab", "ab", "", "a", "ba", "bab", "7", "77", "-7", "aab", "b", "yes"),
    *("a@b.co", "1.2.3.4", "300.1.1.1", "2024-02-31", "b.c", "bxc", "red", "purple", "1.5", "1e5", "True", "None"),
    "123e4567-e89b-42d3-a456-426614174000",
]


@pytest.mark.parametrize("term", TERMS, ids=str)
def test_language_is_that_of_outlines(term: Any) -> None:
    judge = re.compile(dsl.to_regex(dsl.python_types_to_terms(term)))
    for sample in SAMPLES:
        assert accepts(term, sample) == (judge.fullmatch(sample) is not None), sample


def test_structured_types_become_schemas() -> None:
    assert isinstance(spec_of(Person), JsonSchema)
    assert accepts(Person, '{"name": "A", "age": 3}') and not accepts(Person, '{"name": "A", "age": "3"}')
    assert isinstance(spec_of(types.JsonSchema('{"type":"string"}')), JsonSchema)


def test_grammars_and_specs_pass_through() -> None:
    assert spec_of(types.CFG('start: "a"')) == Lark(grammar='start: "a"')
    assert spec_of(Choice(choices=("a",))) == Choice(choices=("a",))


def test_refusals() -> None:
    with pytest.raises(BadRequest):
        spec_of(object())
    with pytest.raises(GrammarRefused):
        spec_of(types.JsonSchema('{"type":"string"}', whitespace_pattern=r"\s*"))
