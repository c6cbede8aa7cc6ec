"""A type asked for is a constraint on the output, and the variable has that type."""

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from outlines.types import CFG, JsonSchema, Regex
from outlines.types import dsl as outlines_dsl

from ramet import State, function, gen, gen_int, gen_string
from ramet.constrained import spec
from ramet.lang.backends.scripted import Scripted
from ramet.lang.dtype import of_grammar, of_schema, of_type
from ramet.lang.options import GEN_NAMES, check_options, to_spec
from ramet.runtime.errors import BadRequest

Make = Callable[..., Scripted]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class City:
    name: str
    size: int


class Row(TypedDict):
    a: int


class Pair(NamedTuple):
    a: int
    b: str


class Thing(msgspec.Struct):
    a: int
    tags: list[str] = []


class Model(pydantic.BaseModel):
    a: int


CASES: list[tuple[Any, type, str, Any]] = [
    (int, spec.Regex, "-42", -42),
    ("int", spec.Regex, "0", 0),
    (float, spec.Regex, "-3.5", -3.5),
    (bool, spec.Choice, "True", True),
    (str, spec.JsonSchema, '"a \\"b\\""', 'a "b"'),
    (Literal["yes", "no"], spec.Choice, "no", "no"),
    (Literal[1, 2], spec.Choice, "2", 2),
    (Colour, spec.Choice, "blue", Colour.BLUE),
    (City, spec.JsonSchema, '{"name": "Rome", "size": 3}', City("Rome", 3)),
    (Row, spec.JsonSchema, '{"a": 1}', {"a": 1}),
    (Pair, spec.JsonSchema, '[1, "x"]', Pair(1, "x")),
    (Thing, spec.JsonSchema, '{"a": 1}', Thing(1)),
    (Model, spec.JsonSchema, '{"a": 1}', Model(a=1)),
    (list[int], spec.JsonSchema, "[1, 2]", [1, 2]),
    (dict[str, float], spec.JsonSchema, '{"a": 1.5}', {"a": 1.5}),
    (int | None, spec.JsonSchema, "null", None),
    (Regex("a+"), spec.Regex, "aa", "aa"),
]


@pytest.mark.parametrize(("dtype", "kind", "text", "value"), CASES, ids=lambda c: str(getattr(c, "__name__", c))[:20])
def test_type_to_constraint_and_text_to_value(dtype: Any, kind: type, text: str, value: Any, scripted: Make) -> None:
    found, _ = of_type(dtype)
    assert isinstance(found, kind)

    @function
    def program(s: State) -> None:
        s += gen("x", dtype=dtype)

    result = program.run(backend=scripted(text))["x"]
    assert result == value and type(result) is type(value)


def test_gen_int_and_gen_string(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen_int("n") + " " + gen_string("t")

    state = program.run(backend=scripted(["12", '"hi"']))
    assert (state["n"], state["t"], state.text()) == (12, "hi", '12 "hi"')
    assert state.get("n", int) == 12
    with pytest.raises(BadRequest, match="int"):
        state.get("t", int)


def test_samples_are_typed_too(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("n", dtype=int, n=3)

    assert program.run(backend=scripted(["1", "2", "3"]))["n"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("start: /a/", spec.Lark(grammar="start: /a/")),
        (spec.JsonObject(), spec.JsonObject()),
        (spec.Regex(pattern="a"), spec.Regex(pattern="a")),
        (Regex("a+"), spec.Regex(pattern="a+")),
        (CFG("start: /a/"), spec.Lark(grammar="start: /a/")),
        (outlines_dsl.Choice(["a", "b"]), spec.Choice(choices=("a", "b"))),
        (JsonSchema('{"type": "integer"}'), spec.JsonSchema(schema='{"type": "integer"}')),
    ],
    ids=repr,
)
def test_grammars_and_terms(given: Any, found: spec.Spec) -> None:
    result = of_grammar(given)
    if isinstance(found, spec.JsonSchema):
        assert isinstance(result, spec.JsonSchema) and json.loads(result.schema) == json.loads(found.schema)
    else:
        assert result == found


def test_json_schema_gives_text(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x", json_schema={"type": "object"})

    assert program.run(backend=scripted('{"a": 1}'))["x"] == '{"a": 1}'
    assert of_schema(City) == of_type(City)[0]


@pytest.mark.parametrize(
    ("make", "at"),
    [
        (lambda: of_type("number"), "$.dtype"),
        (lambda: of_type(object()), "$.dtype"),
        (lambda: of_schema("{"), "$.json_schema"),
        (lambda: of_grammar(3), "$.grammar"),
        (lambda: of_type(Callable), "$.dtype"),
    ],
)
def test_what_is_no_type_says_where(make: Callable[[], object], at: str) -> None:
    with pytest.raises(BadRequest) as caught:
        make()
    assert caught.value.at == at


def test_options_of_json_reach_the_schema_and_nothing_else() -> None:
    given = check_options(
        {"json_schema": {"type": "object"}, "any_order": True, "unsupported": "declare"}, GEN_NAMES, "gen"
    )
    grammar = to_spec(given, relaxed=False)[0].grammar
    assert grammar == spec.JsonSchema(schema='{"type": "object"}', any_order=True, unsupported="declare")
    tagged = spec.Tagged(name="x", item=spec.JsonSchema(schema="{}"))
    inside = spec.Sequence(items=(spec.Text(until=("{",)), tagged, spec.Regex(pattern="a")))
    found = to_spec({"grammar": inside, "whitespace": "compact"}, relaxed=False)[0].grammar
    assert isinstance(found, spec.Sequence) and found.items[1].item.whitespace == "compact"
    assert found.items[::2] == inside.items[::2]


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({"json_schema": "{}", "whitespace": "much"}, r"\$\.whitespace"),
        ({"json_schema": "{}", "unsupported": "ignore"}, r"\$\.unsupported"),
        ({"regex": "a", "any_order": True}, r"\$\.any_order"),
        ({"any_order": True}, r"\$\.any_order"),
    ],
)
def test_options_of_json_that_can_have_no_effect_are_refused(options: dict[str, object], at: str) -> None:
    with pytest.raises(BadRequest, match=at):
        check_options(options, GEN_NAMES, "gen")


def test_a_schema_inside_a_term_is_enforced_as_a_schema() -> None:
    """outlines' own pattern for it would drop the bounds."""
    term = "n = " + JsonSchema('{"type": "integer", "minimum": 3}') + outlines_dsl.Regex(";?")
    found = of_grammar(term)
    assert isinstance(found, spec.Sequence) and isinstance(found.items[0], spec.Sequence)
    assert isinstance(found.items[0].items[1], spec.JsonSchema)
    assert of_type(term)[0] == found
