"""Our masks beside llguidance's, token by token: what we forbid and it allows, each explained by a proof.

`ramet bench grammar --suite peer --data FILE` walks one valid instance of each schema that both take. At every step
the two masks are compared, and for each way in which a token dies here (state and byte) one token is followed up:
llguidance completes the text at random, and the finished value says why we forbade it. It is invalid; or valid and we
accept the same value in another spelling (whitespace, number, escape) or order of keys; or it repeats a key. What is
none of these is `unexplained`. In the other direction a token that we allow and it forbids is completed by our own
grammar, and the value must be valid. Ours runs with `whitespace="exact"`: by default it bounds whitespace, which would
be nearly all there is to see. Options (`--set`): every=N, limit=N, proofs=N per schema and direction,
progress=1.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ramet.bench.form import Bar, Measured, NotCorrect
from ramet.constrained.compile import compile
from ramet.constrained.grammar import CompiledGrammar
from ramet.constrained.json_schema.lower import validate_final
from ramet.constrained.lark.fallback import tokenizer_of
from ramet.constrained.spec import JsonSchema
from ramet.constrained.state import GrammarState
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused
from ramet.runtime.weights.discover import find_default_model
from ramet.runtime.weights.source import open_source

BARS = (Bar("unexplained", 0, "<="), Bar("invalid_allowed_by_us", 0, "<="))
MAX_STEPS = 400
MAX_LOOKED_AT = 500
"""Tokens of one step that are looked at, to see whether they die in a way not yet followed up."""
CLOSERS = (b'"', b"}", b"]", b'"}', b"0", b"true", b"null", b'":', b"{}", b"a")


def measure(options: Mapping[str, object] | None = None) -> Measured:
    """Counts by reason. Raises NotCorrect where llguidance or the data is missing."""
    chosen = {str(key): str(value) for key, value in (options or {}).items()}
    if "data" not in chosen:
        raise NotCorrect("expected --data FILE, of the form of jsonschemabench")
    rows = [json.loads(line) for line in Path(chosen["data"]).read_text(encoding="utf-8").splitlines()]
    rows = rows[:: int(chosen.get("every", 4))]
    duel = _Duel(num_proofs=int(chosen.get("proofs", 12)))
    for row in rows[: int(chosen.get("limit", len(rows)))]:
        duel.schema(str(row["id"]), row["schema"], row["tests"])
        if "progress" in chosen:
            print(f"{row['id']}: {duel.num_schemas} schemas, {duel.num_steps} steps", file=sys.stderr)
    figures = {
        "schemas_compared": duel.num_schemas,
        "proofs": sum(duel.ours.values()),
        "steps": duel.num_steps,
        "steps_with_equal_masks": duel.num_equal,
        "unexplained": duel.ours["unexplained"],
        "invalid_allowed_by_us": duel.theirs["invalid"],
    }
    notes = {
        "we_forbid_it_allows": dict(duel.ours.most_common()),
        "we_allow_it_forbids": dict(duel.theirs.most_common()),
        "examples": duel.examples,
    }
    return Measured(figures=figures, bars=BARS, notes=notes)


class _Duel:
    """Both engines over the embedded model's vocabulary."""

    def __init__(self, num_proofs: int) -> None:
        tokenizer = open_source(find_default_model()).tokenizer()
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer)
        self.peer = _Peer(self.vocabulary)
        self.num_proofs = num_proofs
        self.ours: Counter[str] = Counter()
        self.theirs: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.num_schemas = self.num_steps = self.num_equal = 0
        self.rng = random.Random(0)
        ids = self.vocabulary.id_of_bytes
        self.closers = [ids[data] for data in CLOSERS if data in ids]

    def encode(self, text: str) -> list[int]:
        """Ids of a text in the middle of another."""
        return self.tokenizer.encode(text, follows="text")

    def schema(self, name: str, schema: Any, tests: Iterable[Mapping[str, Any]]) -> None:
        """Compare on the first valid instance that both accept in our default order."""
        text = json.dumps(schema)
        try:
            grammar = compile(JsonSchema(schema=text, whitespace="exact"), self.vocabulary)
            free = compile(JsonSchema(schema=text, any_order=True, whitespace="exact"), self.vocabulary)
        except GrammarRefused:
            return
        matcher = self.peer.matcher(schema)
        if matcher is None:
            return
        for test in tests:
            instance = json.dumps(test["instance"], ensure_ascii=False)
            if test["valid"] and grammar.initial().advance_bytes(instance.encode()).accepting:
                self.num_schemas += 1
                _Walk(self, name, text, grammar, free).run(matcher, instance)
                return

    def completed(self, state: Any, allowed: Any, accepting: Any, advance: Any) -> bytes | None:
        """A random finished text behind a state of either engine; None where it does not end soon."""
        out = bytearray()
        for _ in range(300):
            if accepting(state):
                return bytes(out)
            choices = allowed(state)
            if not len(choices):
                return None
            closing = [
                token for token in self.closers if choices[np.searchsorted(choices, token) % len(choices)] == token
            ]
            token = self.rng.choice(closing) if closing and self.rng.random() < 0.8 else int(self.rng.choice(choices))
            state = advance(state, token)
            out += self.vocabulary.token_bytes[token]
        return None


class _Walk:
    """One schema, one instance."""

    def __init__(self, duel: _Duel, name: str, schema: str, grammar: CompiledGrammar, free: CompiledGrammar) -> None:
        self.duel, self.name, self.schema, self.grammar, self.free = duel, name, schema, grammar, free
        self.followed: set[object] = set()
        self.proofs = [0, 0]

    def run(self, matcher: Any, instance: str) -> None:
        duel, state, written = self.duel, self.grammar.initial(), b""
        row = np.zeros(duel.vocabulary.num_words, np.int32)
        for token in duel.encode(instance)[:MAX_STEPS]:
            state.mask(row)
            ours, theirs = duel.vocabulary.unpack(row), duel.peer.allowed(matcher)
            duel.num_steps += 1
            only_theirs, only_ours = np.setdiff1d(theirs, ours), np.setdiff1d(ours, theirs)
            duel.num_equal += not len(only_theirs) and not len(only_ours)
            self._follow(only_theirs, 0, lambda token: self._explain_theirs(state, matcher, written, token))  # noqa: B023
            self._follow(only_ours, 1, lambda token: self._explain_ours(state, written, token))  # noqa: B023
            if not duel.peer.consume(matcher, token):
                return
            state = state.advance(token)
            written += duel.vocabulary.token_bytes[token]

    def _follow(self, tokens: npt.NDArray[np.int64], side: int, explain: Callable[[int], None]) -> None:
        """Explain tokens in an order of chance until the proofs of this side are used up."""
        if self.proofs[side] >= self.duel.num_proofs:
            return
        order = tokens.tolist()
        self.duel.rng.shuffle(order)
        for token in order[:MAX_LOOKED_AT]:
            if self.proofs[side] >= self.duel.num_proofs:
                return
            explain(token)

    def _explain_theirs(self, state: GrammarState, matcher: Any, written: bytes, token: int) -> None:
        data = self.duel.vocabulary.token_bytes[token]
        key = ("theirs", *_death(state, data))
        if key in self.followed:
            return
        self.followed.add(key)
        self.proofs[0] += 1
        rest = self.duel.peer.completion(self.duel, matcher, token)
        reason = "not finished" if rest is None else self._reason(written + data + rest)
        self._count(self.duel.ours, reason, written + data, rest)

    def _reason(self, data: bytes) -> str:
        try:
            value = json.loads(data, object_pairs_hook=_without_repeats)
        except _Repeated:
            return "repeated key"
        except ValueError:
            return "not JSON"
        if validate_final(self.schema, value):
            return "invalid value"
        plain = json.dumps(_plain(value), ensure_ascii=False)
        if _accepts(self.grammar, plain):
            return f"spelling: {_spelling(self.grammar, data)}"
        return "order of keys" if _accepts(self.free, plain) else "unexplained"

    def _explain_ours(self, state: GrammarState, written: bytes, token: int) -> None:
        if token in self.duel.vocabulary.end_id_set:
            return
        data = self.duel.vocabulary.token_bytes[token]
        key = ("ours", state.configurations, data[:1])
        if key in self.followed:
            return
        self.followed.add(key)
        self.proofs[1] += 1
        rest = self.duel.completed(
            state.advance(token), lambda s: np.asarray(s.allowed()), lambda s: s.accepting, lambda s, t: s.advance(t)
        )
        reason = "not finished" if rest is None else self._validity(written + data + rest)
        self._count(self.duel.theirs, reason, written + data, rest)

    def _validity(self, data: bytes) -> str:
        return "invalid" if validate_final(self.schema, json.loads(data)) else "valid"

    def _count(self, counter: Counter[str], reason: str, begun: bytes, rest: bytes | None) -> None:
        counter[reason] += 1
        side = "theirs" if counter is self.duel.theirs else "ours"
        kept = self.duel.examples.setdefault(f"{side}: {reason}", [])
        if len(kept) < 3:
            before, after = begun[-120:].decode("utf-8", "replace"), (rest or b"")[:60].decode("utf-8", "replace")
            kept.append(f"{self.name}: {before} >>> {after}")


class _Peer:
    """llguidance behind four verbs."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        try:
            import llguidance
        except ImportError:
            raise NotCorrect("llguidance is not installed: pip install 'ramet[llguidance]'") from None
        self.library: Any = llguidance
        self.vocabulary = vocabulary
        self.tokenizer = tokenizer_of(vocabulary)

    def matcher(self, schema: Any) -> Any | None:
        """None where it refuses the schema."""
        made = self.library.LLMatcher(self.tokenizer, self.library.LLMatcher.grammar_from_json_schema(schema))
        return None if made.is_error() else made

    def allowed(self, matcher: Any) -> npt.NDArray[np.int64]:
        """Ids, ascending, without end tokens."""
        words = (
            np.frombuffer(matcher.compute_bitmask(), dtype=np.uint32).astype(np.int64).astype(np.uint32).view(np.int32)
        )
        found = self.vocabulary.unpack(words[: self.vocabulary.num_words].copy())
        return found[~np.isin(found, self.vocabulary.end_ids)]

    def consume(self, matcher: Any, token: int) -> bool:
        return bool(matcher.consume_token(token))

    def completion(self, duel: _Duel, matcher: Any, token: int) -> bytes | None:
        """A finished text behind `token`, without it."""
        copy = matcher.deep_copy()
        if not copy.consume_token(token):
            return None

        def advance(state: Any, following: int) -> Any:
            state.consume_token(following)
            return state

        return duel.completed(copy, self.allowed, lambda s: s.is_accepting(), advance)


class _Repeated(ValueError):
    """An object names a key twice."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _Repeated
    return made


def _death(state: GrammarState, data: bytes) -> tuple[object, int]:
    """The state in which a token dies and the byte of which it does."""
    for index in range(len(data)):
        following = state.advance_bytes(data[index : index + 1])
        if following.is_dead:
            return state.configurations, data[index]
        state = following
    return state.configurations, -1


def _plain(value: Any) -> Any:
    """Whole floats as integers: 1.0 and 1 are one number."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return value


def _accepts(grammar: CompiledGrammar, text: str) -> bool:
    return grammar.initial().advance_bytes(text.encode()).accepting


def _spelling(grammar: CompiledGrammar, data: bytes) -> str:
    """What kind of character we refuse in a text whose value we accept."""
    state, quoted = grammar.initial(), False
    for index, byte in enumerate(data):
        state = state.advance_bytes(data[index : index + 1])
        if state.is_dead:
            return "whitespace" if byte in b" \t\r\n" and not quoted else "escape" if quoted else "number"
        if byte == 0x22 and data[index - 1 : index] != b"\\":
            quoted = not quoted
    return "end"
