"""Masks against brute force: `ramet bench grammar --suite masks --data F` (or `ramet bench grammar_masks`).

For each schema a random legal walk, under the default options and, for every second schema, with keys in any order. At
every step the mask must equal, bit for bit, what the plain interpreter finds by reading every token of the vocabulary.
Twice: over the embedded model's vocabulary, and over a large one, of 262,144 tokens. The large one is read from
`--set vocabulary=MODEL` (a GGUF file or a model folder); without it, the embedded model's tokens are joined in pairs
until there are enough. A schema that the interpreter can not write out (long lengths are products to it) or that is
refused is passed over and another taken. Options (`--set`): schemas=50, large=10, steps=24, seed=0.
"""

import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ramet.bench.form import Bar, Measured, NotCorrect
from ramet.constrained.automaton.expressible import expressible
from ramet.constrained.automaton.interpreter import Interpreter
from ramet.constrained.compile import compile
from ramet.constrained.regex.dfa import TooManyStates
from ramet.constrained.segments import compose
from ramet.constrained.spec import JsonSchema
from ramet.constrained.tables.brute_force import BruteForce
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused
from ramet.runtime.weights.discover import find_default_model
from ramet.runtime.weights.source import open_source

NUM_LARGE_TOKENS = 262_144
MAX_READINGS = 40
"""A walk ends where the interpreter follows more readings than that: it keeps all, the machine joins equal ones."""
MAX_SCHEMA_CHARACTERS = 6_000
CLOSE_ODDS = 0.6
"""How often a walk takes a token that ends something; without, text and free keys would go on for ever."""
CLOSERS = (b'"', b"}", b"]", b'"}', b'":', b'",', b'"]', b"0", b"true", b"null", b",", b"{", b"[", b"{}", b"[]")


@dataclass(slots=True)
class Walked:
    """What was compared over one vocabulary."""

    num_tokens: int
    num_schemas: int = 0
    num_steps: int = 0
    num_bits: int = 0
    num_finished: int = 0
    passed_over: list[str] = field(default_factory=list)
    took_s: float = 0.0


def measure(options: Mapping[str, object] | None = None) -> Measured:
    """Raises NotCorrect at the first mask that differs."""
    chosen = {str(key): str(value) for key, value in (options or {}).items()}
    if "data" not in chosen:
        raise NotCorrect("expected --data FILE, of the form of jsonschemabench")
    number, large = int(chosen.get("schemas", 50)), int(chosen.get("large", 10))
    num_steps, seed = int(chosen.get("steps", 24)), int(chosen.get("seed", 0))
    rows = [json.loads(line) for line in Path(chosen["data"]).read_text(encoding="utf-8").splitlines()]
    schemas = [(str(row["id"]), json.dumps(row["schema"], ensure_ascii=False)) for row in rows]
    random.Random(seed).shuffle(schemas)
    model = Vocabulary.from_tokenizer(open_source(find_default_model()).tokenizer())
    own = compare(model, schemas, number, num_steps=num_steps, seed=seed)
    wide = compare(_large(chosen, model), schemas, large, num_steps=num_steps, seed=seed)
    figures = {**_figures("", own), **_figures("large_", wide)}
    bars = [
        Bar("schemas", min(50, number), ">="),
        Bar("large_schemas", min(10, large), ">="),
        Bar("large_tokens", NUM_LARGE_TOKENS, ">="),
        Bar("masks_that_differ", 0, "<="),
    ]
    notes = {"passed_over": own.passed_over, "large_passed_over": wide.passed_over}
    return Measured(figures={**figures, "masks_that_differ": 0}, bars=bars, notes=notes)


def _figures(prefix: str, walked: Walked) -> dict[str, float]:
    return {
        f"{prefix}tokens": walked.num_tokens,
        f"{prefix}schemas": walked.num_schemas,
        f"{prefix}masks": walked.num_steps,
        f"{prefix}bits": walked.num_bits,
        f"{prefix}walks_to_the_end": walked.num_finished,
        f"{prefix}seconds": walked.took_s,
    }


def _large(chosen: Mapping[str, str], model: Vocabulary) -> Vocabulary:
    if "vocabulary" in chosen:
        return Vocabulary.from_tokenizer(open_source(Path(chosen["vocabulary"])).tokenizer())
    return widened(model, NUM_LARGE_TOKENS)


def widened(vocabulary: Vocabulary, size: int) -> Vocabulary:
    """The vocabulary with pairs of its tokens as tokens, ids above its own, until there are `size`."""
    draw = random.Random(0)
    texts = [data for i, data in enumerate(vocabulary.token_bytes) if data and i not in vocabulary.special_ids]
    known = dict.fromkeys(texts)
    tokens = list(vocabulary.token_bytes)
    while len(tokens) < size:
        pair = draw.choice(texts) + draw.choice(texts)
        if pair not in known:
            known[pair] = None
            tokens.append(pair)
    return Vocabulary(tokens, special=vocabulary.special, end_ids=vocabulary.end_ids)


def compare(
    vocabulary: Vocabulary,
    schemas: list[tuple[str, str]],
    number: int,
    *,
    num_steps: int,
    seed: int,
    max_characters: int = MAX_SCHEMA_CHARACTERS,
) -> Walked:
    """Walk until `number` schemas were compared. Raises NotCorrect where a mask differs."""
    walked = Walked(vocabulary.size)
    began_s = time.perf_counter()
    for turn, (name, text) in enumerate(schemas):
        if walked.num_schemas == number:
            break
        spec = JsonSchema(schema=text, any_order=turn % 2 == 1)
        if len(text) > max_characters:
            continue
        try:
            for allowed in steps(vocabulary, spec, random.Random(f"{seed} {name}"), num_steps):
                walked.num_steps += 1
                walked.num_bits += vocabulary.size
                walked.num_finished += allowed is None
        except GrammarRefused:
            walked.passed_over.append(f"{name}: refused")
            continue
        except TooManyStates:
            walked.passed_over.append(f"{name}: too long for the interpreter")
            continue
        walked.num_schemas += 1
        print(f"{name}: {walked.num_steps} masks, {time.perf_counter() - began_s:.1f} s", file=sys.stderr)
    walked.took_s = time.perf_counter() - began_s
    return walked


def steps(
    vocabulary: Vocabulary, spec: JsonSchema, choose: random.Random, num_steps: int
) -> Iterator[list[int] | None]:
    """The masks of one walk, each compared; None instead of the mask of an output that ended after it."""
    state = compile(spec, vocabulary).initial()
    written = expressible(compose(spec), vocabulary.missing_bytes)
    brute = BruteForce(vocabulary, Interpreter(written))
    place = brute.start
    for _ in range(num_steps):
        allowed = state.allowed()
        _must_be_equal(spec, vocabulary, allowed, brute.allowed(place))
        plain = [token for token in allowed if token not in vocabulary.end_id_set]
        if not plain or (state.accepting and choose.random() < CLOSE_ODDS):
            yield None
            return
        yield allowed
        token = _chosen(vocabulary, plain, choose)
        state, place = state.advance(token), brute.run(place, vocabulary.token_bytes[token])
        if len(brute.configurations(place)) > MAX_READINGS:
            return


def _chosen(vocabulary: Vocabulary, plain: list[int], choose: random.Random) -> int:
    allowed = set(plain)
    closers = [
        token for data in CLOSERS if (token := vocabulary.id_of_bytes.get(data)) in allowed and token is not None
    ]
    return choose.choice(closers if closers and choose.random() < CLOSE_ODDS else plain)


def _must_be_equal(spec: JsonSchema, vocabulary: Vocabulary, ours: list[int], theirs: list[int]) -> None:
    if ours == theirs:
        return
    differing = itertools.islice(sorted(set(ours) ^ set(theirs)), 8)
    shown = ", ".join(f"{token} {vocabulary.token_bytes[token]!r}" for token in differing)
    raise NotCorrect(f"the mask differs from brute force in {shown}; any_order={spec.any_order}: {spec.schema[:300]}")
