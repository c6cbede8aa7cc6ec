"""Masks over the embedded model's 49,152 tokens, and over 262,144, equal brute force: real schemas, every token.

`ramet bench grammar --suite masks` walks further; RAMET_FULL=1 makes these walks as long.
"""

import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from ramet.bench.grammar_masks import NUM_LARGE_TOKENS, compare, widened
from ramet.constrained.compile import compile_grammar
from ramet.constrained.grammar import Engine
from ramet.constrained.segments import compose
from ramet.constrained.spec import JsonSchema
from ramet.constrained.tables.descend import NumpyDescent

sys.path.insert(0, str(Path(__file__).parent))
from vocabularies import model_vocabulary

SCHEMAS = Path(__file__).parents[3] / "shared/data/jsonschemabench/open.jsonl"
FULL = os.environ.get("RAMET_FULL") == "1"
NUM_STEPS, MAX_CHARACTERS = (24, 6_000) if FULL else (8, 1_200)  # the interpreter is slow on large schemas

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SCHEMAS.exists(), reason="needs the shared data")]


def schemas() -> list[tuple[str, str]]:
    with SCHEMAS.open() as lines:
        rows = [json.loads(line) for line in lines]
    found = [(row["id"], json.dumps(row["schema"], ensure_ascii=False)) for row in rows]
    random.Random(3).shuffle(found)
    return found


def test_equal_brute_force_on_fifty_real_schemas() -> None:
    vocabulary, _ = model_vocabulary()
    walked = compare(vocabulary, schemas(), 50, num_steps=NUM_STEPS, seed=1, max_characters=MAX_CHARACTERS)
    assert walked.num_schemas == 50
    assert walked.num_steps > 100


def test_equal_brute_force_over_a_large_vocabulary() -> None:
    vocabulary, _ = model_vocabulary()
    large = widened(vocabulary, NUM_LARGE_TOKENS)
    walked = compare(large, schemas(), 10, num_steps=NUM_STEPS, seed=2, max_characters=MAX_CHARACTERS)
    assert walked.num_schemas == 10
    assert walked.num_tokens == NUM_LARGE_TOKENS


def test_numpy_and_native_walks_are_equal() -> None:
    vocabulary, encode = model_vocabulary()
    spec = JsonSchema(schema=schemas()[0][1])
    native, plain = Engine(vocabulary), Engine(vocabulary)
    plain.explorer.descent = NumpyDescent(plain.machine, vocabulary.trie)
    grammar = compose(spec)
    states = [compile_grammar(grammar, engine).initial() for engine in (native, plain)]
    text = '{"a": "b", "name": [1, -2.5, {"x": null}]'
    rows = np.zeros((2, vocabulary.num_words), dtype=np.int32)
    for token in encode(text):
        for state, row in zip(states, rows, strict=True):
            state.mask(row)
        assert (rows[0] == rows[1]).all()
        states = [state.advance(token) for state in states]
