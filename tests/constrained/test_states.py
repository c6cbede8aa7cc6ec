"""States are values: a fork changes nothing behind it, and a replay of the tokens stands where the walk stood."""

import json
import random
import sys
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.constrained.compile import compile
from ramet.constrained.spec import JsonSchema
from ramet.constrained.state import GrammarState
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "json_schema"))
from random_schemas import random_schema
from vocabularies import byte_vocabulary

vocabulary = cache(byte_vocabulary)


def closing(tokens: list[int], known: Vocabulary) -> list[int]:
    return [token for token in tokens if known.token_bytes[token][:1] in (b'"', b"]", b"}")]


def walk(state: GrammarState, choose: random.Random, steps: int) -> tuple[list[int], list[GrammarState]]:
    """Random legal tokens, and every state on the way."""
    tokens, states = [], [state]
    for _ in range(steps):
        allowed = [token for token in state.allowed() if token not in vocabulary().end_id_set]
        if not allowed:
            break
        ends = closing(allowed, vocabulary())
        token = choose.choice(ends if ends and choose.random() < 0.3 else allowed)
        tokens.append(token)
        state = state.advance(token)
        states.append(state)
    return tokens, states


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_forks_and_replays_are_identical(seed: int, any_order: bool) -> None:
    choose = random.Random(seed)
    spec = JsonSchema(schema=json.dumps(random_schema(choose)), any_order=any_order)
    try:
        grammar = compile(spec, vocabulary())
    except GrammarRefused:
        return
    tokens, states = walk(grammar.initial(), choose, 24)
    masks = [state.allowed() for state in states]
    fork = choose.randrange(len(states))
    _, others = walk(states[fork], choose, 12)  # another branch, which must leave the first alone
    assert [state.allowed() for state in states] == masks
    assert others[0] is states[fork]

    again = grammar.initial()
    for token, state in zip(tokens, states[1:], strict=True):
        again = again.advance(token)
        assert again == state
    assert again.allowed() == masks[-1]
    written = b"".join(vocabulary().token_bytes[token] for token in tokens)
    assert grammar.initial().advance_bytes(written) == states[-1]
    assert (again.accepting, again.done, again.forced()) == (
        states[-1].accepting,
        states[-1].done,
        states[-1].forced(),
    )
