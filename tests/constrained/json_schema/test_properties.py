"""Random schemas and values: the grammar, the validator and an independent validator agree.

With any order of keys and numbers that JSON writes plainly, a grammar is exact: what it accepts is what is valid.
"""

import json
import random
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from ramet.constrained.grammar import CompiledGrammar
from ramet.constrained.json_schema.lower import validate_final
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from random_schemas import damaged, mutated, random_schema, random_value
from schema_grammars import accepts, grammar_of

SEEDS = st.integers(0, 2**32)


def verdicts(schema: Any, value: Any) -> tuple[bool, bool]:
    """Ours and the other validator's."""
    ours = not validate_final(json.dumps(schema), value)
    return ours, jsonschema.Draft202012Validator(schema).is_valid(value)


def compiled(schema: Any, **options: Any) -> CompiledGrammar | None:
    """The grammar; None for a schema that nothing satisfies. What is refused is no example: another is drawn."""
    try:
        return grammar_of(schema, **options)
    except GrammarRefused as refusal:
        assert refusal.at is not None
        assert refusal.at.startswith("#")
        if "unsatisfiable" in refusal.code:
            return None
        reject()


def may_collide(schema: Any, value: Any) -> bool:
    """Whether two free keys may be taken for one, where different ones are counted: stricter than the schema."""
    if isinstance(value, list):
        return any(may_collide(schema, item) for item in value)
    if not isinstance(value, dict):
        return False
    own = len(value) > 1 and "Properties" in json.dumps(schema)
    return own or any(may_collide(schema, item) for item in value.values())


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_accepts_what_is_valid_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    schema = random_schema(rng)
    grammar = compiled(schema, any_order=True)
    for _ in range(12):
        value = random_value(rng)
        for candidate in (value, mutated(rng, value)):
            ours, theirs = verdicts(schema, candidate)
            text = json.dumps(candidate, ensure_ascii=False)
            assert ours == theirs, (schema, candidate)
            accepted = grammar is not None and accepts(grammar, text)
            assert accepted == theirs or (theirs and may_collide(schema, candidate)), (schema, candidate)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_random_walks_end_in_valid_values(seed: int) -> None:
    """Whatever is written under the default options is valid: generation by random legal bytes."""
    rng = random.Random(seed)
    schema = random_schema(rng)
    grammar = compiled(schema)
    if grammar is None:
        return
    for _ in range(4):
        text = walked(grammar, rng)
        if text is not None:
            value = json.loads(text, parse_float=Decimal)  # a float would round what was written to its neighbour
            assert validate_final(json.dumps(schema), value) == [], (schema, text)


def walked(grammar: CompiledGrammar, rng: random.Random) -> str | None:
    """A text that the grammar leads to, byte by random byte; closing bytes are preferred. None if it gets long."""
    state, written = grammar.initial(), bytearray()
    for _ in range(600):
        if state.accepting and (state.done or rng.random() < 0.3):
            return written.decode()
        choices = [byte for byte in state.allowed() if byte < 256]
        closing = [byte for byte in choices if byte in b'"]}']
        byte = rng.choice(closing if closing and rng.random() < 0.5 else choices)
        state = state.advance(byte)
        written.append(byte)
    return None


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_declared_order_never_accepts_more(seed: int) -> None:
    rng = random.Random(seed)
    schema = random_schema(rng)
    grammar = compiled(schema)
    for _ in range(12):
        value = random_value(rng)
        accepted = grammar is not None and accepts(grammar, json.dumps(value, ensure_ascii=False))
        assert accepted <= verdicts(schema, value)[1], (schema, value)


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_a_damaged_schema_is_served_or_refused_but_breaks_nothing(seed: int) -> None:
    rng = random.Random(seed)
    schema = random_schema(rng)
    for _ in range(rng.randint(1, 3)):
        schema = damaged(rng, schema)
    try:
        grammar_of(schema, unsupported=rng.choice(["error", "declare"]))
    except GrammarRefused as refusal:
        assert str(refusal.at).startswith("#")
