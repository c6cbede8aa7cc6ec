"""Masks over the embedded model's 49,152 tokens equal brute force: real schemas, the plain interpreter, every token.

RAMET_FULL=1 walks fifty schemas for twenty steps, as the release check does; otherwise a few.
"""

import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from ramet.constrained.automaton.interpreter import Configurations, Interpreter
from ramet.constrained.compile import compile, compile_grammar
from ramet.constrained.grammar import Engine
from ramet.constrained.regex.dfa import TooManyStates
from ramet.constrained.segments import compose
from ramet.constrained.spec import JsonSchema
from ramet.constrained.state import GrammarState
from ramet.constrained.tables.descend import NumpyDescent
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from vocabularies import model_vocabulary

SCHEMAS = Path(__file__).parents[3] / "shared/data/jsonschemabench/open.jsonl"
FULL = os.environ.get("RAMET_FULL") == "1"
NUM_SCHEMAS, NUM_STEPS = (50, 20) if FULL else (8, 6)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SCHEMAS.exists(), reason="needs the shared data")]


def schemas(number: int) -> list[str]:
    with SCHEMAS.open() as lines:
        rows = [json.loads(line)["schema"] for line in lines]
    texts = [text for text in map(json.dumps, rows) if len(text) < 3000]
    return random.Random(3).sample(texts, number)


class BruteForce:
    """Every token against the interpreter, with each (configurations, byte) computed once."""

    def __init__(self, vocabulary: Vocabulary, oracle: Interpreter) -> None:
        self.vocabulary, self.oracle = vocabulary, oracle
        self._steps: dict[tuple[Configurations, int], Configurations] = {}
        self._same: dict[Configurations, Configurations] = {}

    def step(self, here: Configurations, byte: int) -> Configurations:
        key = (here, byte)
        if key not in self._steps:
            after = self.oracle.step(here, byte)
            self._steps[key] = self._same.setdefault(after, after)
        return self._steps[key]

    def allowed(self, start: Configurations) -> list[int]:
        trie, found = self.vocabulary.trie, []
        standing: dict[int, Configurations] = {0: start}
        node, num_nodes = 1, trie.num_nodes
        while node < num_nodes:
            after = self.step(standing[int(trie.parent[node])], int(trie.byte[node]))
            if not after:
                node = int(trie.end[node])
                continue
            standing[node] = after
            found.extend(trie.token_ids[trie.token_offset[node] : trie.token_offset[node + 1]].tolist())
            node += 1
        return sorted(found + (list(self.vocabulary.end_ids) if self.oracle.accepts(start) else []))


@pytest.mark.parametrize("number", range(NUM_SCHEMAS))
def test_equal_brute_force_on_real_schemas(number: int) -> None:
    vocabulary, _ = model_vocabulary()
    spec = JsonSchema(schema=schemas(NUM_SCHEMAS)[number])
    try:
        state = compile(spec, vocabulary).initial()
    except GrammarRefused:
        pytest.skip("refused with a reason")
    try:
        walk(vocabulary, spec, state, random.Random(number))
    except TooManyStates:
        pytest.skip("the interpreter writes lengths out, and these are long")


def walk(vocabulary: Vocabulary, spec: JsonSchema, state: GrammarState, choose: random.Random) -> None:
    oracle = Interpreter(compose(spec))
    brute, theirs = BruteForce(vocabulary, oracle), oracle.start()
    for _ in range(NUM_STEPS):
        allowed = state.allowed()
        assert allowed == brute.allowed(theirs)
        plain = [t for t in allowed if t not in vocabulary.end_id_set and vocabulary.token_bytes[t].isascii()]
        if not plain:
            return
        token = choose.choice(plain)
        state = state.advance(token)
        theirs = oracle.run(theirs, vocabulary.token_bytes[token])
        if len(theirs) > 40:
            return


def test_numpy_and_native_walks_are_equal() -> None:
    vocabulary, encode = model_vocabulary()
    spec = JsonSchema(schema=schemas(1)[0])
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
