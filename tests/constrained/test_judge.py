"""Which value of an output fails which keyword: wherever in a spec the schema stands, and however often."""

import json

import pytest

from ramet.constrained import spec as specs
from ramet.constrained.compile import compile
from ramet.constrained.judge import Violation, judge
from ramet.constrained.vocabulary import Vocabulary
from ramet.testing import ByteTokenizer

VOCABULARY = Vocabulary.from_tokenizer(ByteTokenizer())
UNIQUE = specs.JsonSchema(
    schema=json.dumps({"type": "array", "items": {"type": "string"}, "uniqueItems": True}), unsupported="declare"
)
NAMED = specs.JsonSchema(schema=json.dumps({"type": "integer"}), title="the number")
TWICE, ONCE = '["a", "a"]', '["a", "b"]'
IN_ANGLES = specs.Sequence(items=(specs.Literal_(text="<"), UNIQUE, specs.Literal_(text=">")))
FREE = specs.Sequence(items=(specs.Text(until=("<",)), specs.Repeat(item=specs.Tagged(name="t", item=IN_ANGLES))))


def found(spec: specs.Spec, output: str, *more: int) -> list[tuple[int, str, str]]:
    tokens = [*output.encode(), *more]
    broken = judge(spec, tokens, lambda each: compile(each, VOCABULARY))
    return [(each.part, each.pointer, each.at) for each in broken]


@pytest.mark.parametrize(
    ("spec", "output", "broken"),
    [
        (UNIQUE, TWICE, [0]),
        (UNIQUE, ONCE, []),
        (specs.OneOf(items=(NAMED, UNIQUE)), TWICE, [0]),
        (specs.OneOf(items=(NAMED, UNIQUE)), "7", []),
        (specs.Repeat(item=UNIQUE, separator="\n"), f"{ONCE}\n{TWICE}\n{TWICE}", [1, 2]),
        (specs.Sequence(items=(NAMED, specs.Literal_(text=" "), UNIQUE)), f"12 {TWICE}", [1]),
        (
            FREE,
            f"Zürich 漢<{TWICE}><{ONCE}>",
            [0],
        ),
        (FREE, "no value at all", []),
    ],
)
def test_values_are_found_wherever_they_stand(spec: specs.Spec, output: str, broken: list[int]) -> None:
    wanted = [(part, "/uniqueItems", "") for part in broken]
    assert found(spec, output) == wanted
    assert found(spec, output, VOCABULARY.end_ids[0]) == wanted


def test_a_value_that_was_cut_is_told_and_a_whole_one_beside_it_is_not() -> None:
    assert found(specs.Repeat(item=UNIQUE, separator=" "), f'{ONCE} ["a", ') == [(1, "", "")]


def test_special_tokens_have_no_bytes() -> None:
    mark, token = next(iter(VOCABULARY.special.items()))
    spec = specs.Sequence(items=(specs.Literal_(text=mark, special=True), UNIQUE))
    broken = judge(spec, [token, *TWICE.encode()], lambda each: compile(each, VOCABULARY))
    assert broken == [Violation(part=0, pointer="/uniqueItems", at="")]


def test_what_is_enforced_is_not_judged_again() -> None:
    strict = specs.JsonSchema(schema=UNIQUE.schema.replace("true", "false"))
    assert found(specs.Repeat(item=strict, separator=" "), f"{TWICE} {TWICE}") == []


def test_numbers_are_exact_and_absurd_ones_can_not_be_judged() -> None:
    steps = specs.JsonSchema(schema='{"type": "number", "multipleOf": 0.1}', unsupported="declare")
    assert found(steps, "0.3") == []
    assert found(steps, "0.35") == [(0, "/multipleOf", "")]
    assert found(steps, "1e999999999") == [(0, "", "")]
