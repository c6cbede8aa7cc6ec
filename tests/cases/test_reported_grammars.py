"""What users reported against other engines' constrained output, where the reduced schema alone does not show it:
escapes counted, names quoted, pointers decoded, masks timed, grammars with drafts and stop tokens in a running engine.
docs/known-failures.md maps each report to its tests; most are in tests/constrained."""

import asyncio
import json
import statistics
import time
from typing import Any

import numpy as np
import pytest

from ramet.constrained.compile import compile
from ramet.constrained.grammar import CompiledGrammar
from ramet.constrained.spec import JsonSchema, Regex, Spec
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused
from ramet.runtime.types import Delta, GenerateSpec, ProgramSpec, Sampling, TextPiece
from ramet.testing import ByteTokenizer, scripted_client

BYTES = Vocabulary([bytes([byte]) for byte in range(256)])
SERVED = Vocabulary.from_tokenizer(ByteTokenizer())


def grammar_of(schema: Any, vocabulary: Vocabulary = BYTES) -> CompiledGrammar:
    return compile(JsonSchema(schema=json.dumps(schema)), vocabulary)


def accepts(grammar: CompiledGrammar, text: str | bytes) -> bool:
    return grammar.initial().advance_bytes(text if isinstance(text, bytes) else text.encode()).accepting


CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "O01 length beside a format": (
        {"type": "string", "format": "ipv4", "minLength": 9},
        ['"10.20.30.40"'],
        ['"1.2.3.4"', '"aaaaaaaaaaa"'],
    ),
    "O02 an escape is one code point": (
        {"type": "string", "maxLength": 1},
        ['"\\u0041"', '"\\ud83d\\ude00"', '"\\n"', '"\\""', '"😀"', '""'],
        ['"ab"', '"\\n\\n"', '"\\u0041b"', '"\\ud83d\\ude00x"'],
    ),
    "O02 two code points at least": (
        {"type": "string", "minLength": 2},
        ['"\\u0041b"', '"é漢"'],
        ['"\\u0041"', '"\\ud83d\\ude00"', '"漢"'],
    ),
    "O03 raw UTF-8, never Latin-1": (
        {"enum": ["在线", "北京"]},
        ['"在线"'],
        ['"线在"', '"\\u5728"', '"在线北京"', '"' + "在线".encode().decode("latin-1") + '"'],
    ),
    "O06 names with marks of patterns and JSON": (
        {
            "type": "object",
            "properties": {"size (cm)": {"type": "number"}, 'say "hi"': {}, "back\\slash": {"type": "null"}},
            "required": ["size (cm)", 'say "hi"', "back\\slash"],
            "additionalProperties": False,
        },
        ['{"size (cm)": 1.5, "say \\"hi\\"": [], "back\\\\slash": null}'],
        [
            '{"sizeXcm": 1.5, "say \\"hi\\"": [], "back\\\\slash": null}',
            '{"size cm": 1.5, "say \\"hi\\"": [], "back\\\\slash": null}',
            '{"size (cm)": 1.5, "say "hi"": [], "back\\\\slash": null}',
            '{"size (cm)": 1.5, "say \\"hi\\"": [], "back\\slash": null}',
        ],
    ),
    "O12 items that differ": (
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        ["[]", '["a", "c", "b"]'],
        ['["a", "a"]', '["a", "b", "a"]'],
    ),
    "O12 multiples of a fraction": ({"type": "number", "multipleOf": 0.25}, ["1.75", "-2"], ["1.3", "0.125"]),
    "O16 three kinds of keys": (
        {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "patternProperties": {"^x_": {"type": "integer"}},
            "additionalProperties": False,
        },
        ['{"name": "a", "x_1": 2}', "{}"],
        ['{"x_1": "s"}', '{"other": 1}', '{"name": "a", "y_1": 2}'],
    ),
    "O17 an empty member changes nothing": ({"allOf": [{"type": "integer"}, {}]}, ["7"], ['"7"', "7.5"]),
    "O19 the parent's rules hold in each branch": (
        {
            "type": "object",
            "properties": {"action": {"type": "string"}, "id": {"type": "integer"}},
            "required": ["id"],
            "oneOf": [
                {"properties": {"action": {"const": "go"}, "to": {"type": "string"}}, "required": ["action", "to"]},
                {"properties": {"action": {"const": "stop"}}, "required": ["action"]},
            ],
        },
        ['{"action": "go", "id": 1, "to": "x"}', '{"action": "stop", "id": 2}'],
        ['{"action": "stop"}', '{"action": "stop", "id": "2"}', '{"action": "go", "id": 1}'],
    ),
    "O23 a list index": (
        {
            "type": "object",
            "properties": {
                "tree": {"properties": {"left": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}},
                "x": {"$ref": "#/properties/tree/properties/left/anyOf/1"},
            },
        },
        ['{"x": 3}'],
        ['{"x": null}', '{"x": "3"}'],
    ),
    "O23 tilde, slash and percent": (
        {
            "type": "array",
            "prefixItems": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c~0d"}, {"$ref": "#/$defs/e%20f"}],
            "items": False,
            "$defs": {"a/b": {"const": 1}, "c~d": {"const": 2}, "e f": {"const": 3}},
        },
        ["[1, 2, 3]"],
        ["[1, 2, 2]", "[2, 2, 3]", "[1, 3, 3]"],
    ),
    "O25 numbers are equal, true is none": (
        {"enum": [1.0, "1", [1, None], {"k": True}]},
        ["1", '"1"', "[1, null]", '{"k": true}'],
        ["true", "[true, null]", '{"k": 1}', "null"],
    ),
    "O25 true is not 1": ({"enum": [True]}, ["true"], ["1", "1.0", '"true"']),
}


@pytest.mark.parametrize(("schema", "good", "bad"), CASES.values(), ids=list(CASES))
def test_enforced(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = grammar_of(schema)
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


def test_o01_a_length_that_no_match_has_is_found_before_any_token() -> None:
    with pytest.raises(GrammarRefused):
        grammar_of({"type": "string", "pattern": "^a{5}$", "maxLength": 2})


def test_o04_a_lone_lead_byte_never_accepts() -> None:
    state = compile(Regex(pattern="[a-zà-ÿ]+"), BYTES).initial()
    assert state.advance_bytes("añb".encode()).accepting
    assert not state.advance_bytes("añ".encode()[:-1]).accepting
    assert state.advance_bytes("É".encode()).is_dead


def test_o12_items_too_many_to_tell_apart_are_refused_at_the_keyword() -> None:
    with pytest.raises(GrammarRefused) as caught:
        grammar_of({"type": "object", "properties": {"l": {"type": "array", "uniqueItems": True}}})
    assert caught.value.at == "#/properties/l/uniqueItems"


def test_o20_a_required_key_that_no_value_fits_is_found_before_any_token() -> None:
    with pytest.raises(GrammarRefused) as caught:
        grammar_of(
            {
                "type": "object",
                "properties": {"score": {"type": "integer"}},
                "required": ["score"],
                "patternProperties": {"^score$": {"type": "string"}},
            }
        )
    assert caught.value.code == "unsatisfiable"


def mask_seconds(grammar: CompiledGrammar, text: bytes) -> float:
    """Median time of the masks along a text, each state met twice and timed the second time."""
    rows = np.zeros(SERVED.size // 32 + 1, np.int32)
    times = []
    for timed in (False, True):
        state = grammar.initial()
        for byte in text:
            began = time.perf_counter()
            state.mask(rows)
            if timed:
                times.append(time.perf_counter() - began)
            state = state.advance(byte)
    return statistics.median(times)


@pytest.mark.parametrize(
    ("large", "small", "text"),
    [
        ({"enum": [f"value {n}" for n in range(8000)]}, {"enum": ["value 12", "value 13"]}, b'"value 12'),
        ({"type": "string", "maxLength": 100_000}, {"type": "string", "maxLength": 100}, b'"' + b"abc " * 20),
    ],
    ids=["O25", "O26"],
)
def test_a_large_bound_or_enum_costs_no_more_a_mask(large: Any, small: Any, text: bytes) -> None:
    began = time.perf_counter()
    grammar = grammar_of(large, SERVED)
    assert time.perf_counter() - began < 2
    slow, fast = mask_seconds(grammar, text), mask_seconds(grammar_of(small, SERVED), text)
    assert slow < 10 * fast + 100e-6


def test_o28_a_failure_after_a_good_grammar_harms_neither() -> None:
    good = compile(Regex(pattern="^(.*)$"), BYTES)
    for pattern in ("foo**", "[", "("):
        with pytest.raises(GrammarRefused):
            compile(Regex(pattern=pattern), BYTES)
    later = compile(Regex(pattern="^(|.*)$"), BYTES)
    assert accepts(good, "x") and accepts(later, "") and accepts(later, "x")


# In a running engine
# --------------------------------------------------------------------------------------------------------------------

RECORD = {
    "type": "object",
    "properties": {"kind": {"enum": ["alpha", "beta"]}, "size": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "size"],
    "additionalProperties": False,
}


async def written(client: Any, prompt: str, grammar: Spec, **more: Any) -> tuple[str, str]:
    """What a scripted model writes under a grammar, and why it ended."""
    branch = await client.open(ProgramSpec())
    await client.extend(branch, [TextPiece(prompt)])
    spec = GenerateSpec(**{"grammar": grammar, "max_tokens": 300, "sampling": Sampling(temperature=0), **more})
    events = [event async for event in client.generate(branch, spec)]
    return "".join(event.text for event in events if isinstance(event, Delta)), events[-1].reason


def engine(replies: Any = None, **settings: Any) -> Any:
    return scripted_client(replies, grammars=lambda spec: compile(spec, SERVED), **settings)


async def test_o32_an_end_that_the_request_names_waits_for_the_end_of_the_value() -> None:
    """Token 258 is a control token, 257 the model's own end; the model wants nothing but them."""
    spec = JsonSchema(schema=json.dumps(RECORD), whitespace="compact")
    eager = Sampling(temperature=1.0, seed=1, logit_bias={257: 100.0, 258: 100.0})
    async with engine() as client:
        for stop_token_ids in ((), (258,)):
            text, reason = await written(client, "go", spec, stop_token_ids=stop_token_ids, sampling=eager)
            assert reason == "stop" and set(json.loads(text)) == {"kind", "size"}


@pytest.mark.parametrize("stop", ['"', "}", ":", "a", "9"])
@pytest.mark.parametrize("drafts", [True, False])
async def test_o32_a_stop_token_inside_the_value_is_text(stop: str, drafts: bool) -> None:
    """Ordinary tokens that a request names as stops: before the value is complete each of them ends nothing."""
    spec = JsonSchema(schema=json.dumps(RECORD), whitespace="compact")
    async with engine() as client:
        given: dict[str, Any] = {"stop_token_ids": (ord(stop),), "grammar_drafts": drafts}
        text, reason = await written(client, f"{stop} go", spec, **given)
        assert reason == "stop" and set(json.loads(text)) == {"kind", "size"}


async def test_o32_every_stop_token_may_come_once_the_value_is_complete() -> None:
    """258 is a control token of no grammar; `c` could go on, and ends the text as it does without a grammar."""
    eager = Sampling(temperature=0, logit_bias={258: 100.0})
    async with engine({"say": "abcab"}) as client:
        text, reason = await written(
            client, "go", JsonSchema(schema='{"type": "integer"}'), stop_token_ids=(258,), sampling=eager
        )
        assert isinstance(json.loads(text), int) and reason == "stop"
        letters = Regex(pattern="[a-c]+")
        assert await written(client, "say", letters, stop_token_ids=(ord("c"),)) == ("ab", "stop")


async def test_o36_requests_side_by_side_with_drafts_write_what_each_writes_alone() -> None:
    """Mask rows belong to their request and position: grammars of different lengths, with and without drafts."""
    schemas: list[Any] = [
        RECORD,
        {"enum": ["a", "ab", "abc"]},
        {"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 2, "maxItems": 4},
        {"const": {"deep": [{"fixed": "text that is forced from its first byte to its last"}]}},
    ]
    specs = [JsonSchema(schema=json.dumps(schema), whitespace="compact") for schema in schemas]
    async with engine(max_step_tokens=48) as client:
        jobs = [(f"{n}: ", specs[n % 4]) for n in range(16)]
        together = await asyncio.gather(*(written(client, prompt, spec) for prompt, spec in jobs))
        alone = [await written(client, prompt, spec, grammar_drafts=False) for prompt, spec in jobs]
    assert together == alone
    assert {reason for _, reason in together} == {"stop"}
    for (text, _), (_, spec) in zip(together, jobs, strict=True):
        assert accepts(compile(spec, BYTES), text)
