"""How many schemas are enforced exactly, and what a compile and a mask cost: `ramet bench grammar --suite S --data F`.

Suites: jsonschemabench (`{id, schema, tests: [{instance, valid}]}`), json-schema-test-suite (the same with `optional`,
whose rows are left out, and `draft`), micro (`{name, schema, accept, reject}`, texts); masks, hostile and peer measure
other things: see `grammar_masks`, `grammar_hostile` and `grammar_peer`. A schema is right if every valid text is
accepted to its end and every invalid one refused. Instances are written as `json.dumps` writes them, under
`unsupported="error"`.

Every schema is compiled twice. The counts are of the schema's own language, in which an object has no order of keys
(`any_order`). What Ramet generates where nobody asks for another is narrower, keys in the order of the schema: the same
counts of it stand beside them as `declared_order_...`, and `declared_order_of_key_order` says how many of its wrong
rejects are texts that the schema's own language takes. `wrong_accepts` counts both.

Walks are made by tokens of the embedded model, with the mask of every step. A step whose mask and whose advance
disagree stops the benchmark. Options (`--set`): limit=N schemas, every=N takes each Nth, masks=N walks with masks for
each Nth schema (default 4; the others are walked by bytes), progress=1 names each schema on stderr.
"""

import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ramet.bench import grammar_hostile, grammar_masks, grammar_peer
from ramet.bench.form import Bar, Measured, NotCorrect
from ramet.constrained.compile import compile
from ramet.constrained.grammar import CompiledGrammar
from ramet.constrained.ledger import LedgerEntry
from ramet.constrained.spec import JsonSchema
from ramet.constrained.state import GrammarState
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.weights.discover import find_default_model
from ramet.runtime.weights.source import open_source

SPEED_BARS = (
    Bar("compile_p50_ms", 20.0, "<="),
    Bar("compile_p99_ms", 1000.0, "<="),
    Bar("mask_p50_us", 60.0, "<="),
    Bar("mask_p99_us", 1000.0, "<="),
)
BARS = {
    "jsonschemabench": (
        Bar("right", 385, ">="),
        Bar("wrong_accepts", 0, "<="),
        Bar("wrong_rejects", 6, "<="),
        *SPEED_BARS,
    ),
    "json-schema-test-suite": (Bar("right_tests", 1700, ">="), Bar("wrong_accepts", 0, "<=")),
    "micro": (Bar("right_or_declared", 60, ">="), Bar("wrong_accepts", 0, "<=")),
}

OTHER_SUITES = {
    "masks": grammar_masks.measure,
    "hostile": grammar_hostile.measure,
    "peer": grammar_peer.measure,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A schema and texts with their verdicts."""

    name: str
    schema: str
    tests: tuple[tuple[str, bool], ...]


@dataclass(slots=True)
class Tally:
    """What was counted so far."""

    num_right: int = 0
    num_right_tests: int = 0
    num_declared: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    wrong_accepts: list[tuple[str, str]] = field(default_factory=list)
    wrong_rejects: list[tuple[str, str]] = field(default_factory=list)
    compile_s: list[float] = field(default_factory=list)
    mask_s: list[float] = field(default_factory=list)
    first_mask_s: list[float] = field(default_factory=list)


def measure(options: Mapping[str, object] | None = None) -> Measured:
    """Every figure of one suite. Raises NotCorrect where mask and advance disagree."""
    chosen = {str(key): str(value) for key, value in (options or {}).items()}
    suite = chosen.get("suite", "jsonschemabench")
    if suite in OTHER_SUITES:
        return OTHER_SUITES[suite](options)
    if suite not in BARS or "data" not in chosen:
        known = ", ".join([*BARS, *OTHER_SUITES])
        raise NotCorrect(f"expected --suite out of {known}, and --data FILE; got {suite!r}")
    cases = list(_read(suite, Path(chosen["data"])))[:: int(chosen.get("every", 1))]
    cases = cases[: int(chosen.get("limit", len(cases)))]
    tokenizer = open_source(find_default_model()).tokenizer()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    bench = _Bench(vocabulary, tokenizer, masks_every=int(chosen.get("masks", 4)), progress="progress" in chosen)
    declared, free = bench.run(cases, any_order=False), bench.run(cases, any_order=True)
    return _measured(suite, len(cases), declared, free)


def _measured(suite: str, num_cases: int, declared: Tally, free: Tally) -> Measured:
    of_key_order = [reject for reject in declared.wrong_rejects if reject not in set(free.wrong_rejects)]
    figures: dict[str, float] = {
        "schemas": num_cases,
        "right": free.num_right,
        "right_tests": free.num_right_tests,
        "right_or_declared": free.num_right + free.num_declared,
        "refused": len(free.refused),
        "wrong_accepts": len(free.wrong_accepts) + len(declared.wrong_accepts),
        "wrong_rejects": len(free.wrong_rejects),
        "declared_order_right": declared.num_right,
        "declared_order_right_tests": declared.num_right_tests,
        "declared_order_wrong_accepts": len(declared.wrong_accepts),
        "declared_order_wrong_rejects": len(declared.wrong_rejects),
        "declared_order_of_key_order": len(of_key_order),
        **_quantiles("compile", "ms", 1e3, declared.compile_s + free.compile_s),
        **_quantiles("mask", "us", 1e6, declared.mask_s + free.mask_s),
        **_quantiles("first_mask", "us", 1e6, declared.first_mask_s + free.first_mask_s),
        **_quantiles("any_order_compile", "ms", 1e3, free.compile_s),
        **_quantiles("any_order_mask", "us", 1e6, free.mask_s),
    }
    notes = {
        "refused": free.refused,
        "wrong_accepts": (free.wrong_accepts + declared.wrong_accepts)[:50],
        "wrong_rejects": free.wrong_rejects[:50],
        "declared_order": {
            "right": declared.num_right,
            "wrong_rejects": len(declared.wrong_rejects),
            "of_key_order": len(of_key_order),
            "rejected": declared.wrong_rejects[:50],
        },
    }
    return Measured(figures=figures, bars=[bar for bar in BARS[suite] if bar.name in figures], notes=notes)


def _quantiles(name: str, unit: str, scale: float, seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {
        f"{name}_p50_{unit}": scale * cuts[49],
        f"{name}_p99_{unit}": scale * cuts[98],
        f"{name}_max_{unit}": scale * max(seconds),
    }


class _Bench:
    """Compiles and walks."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Tokenizer, *, masks_every: int, progress: bool) -> None:
        self.vocabulary, self.tokenizer = vocabulary, tokenizer
        self.masks_every, self.progress = masks_every, progress
        self.row = np.zeros(vocabulary.num_words, dtype=np.int32)
        compile(JsonSchema(schema="true"), vocabulary)  # builds the trie, which belongs to the tokenizer

    def run(self, cases: list[Case], *, any_order: bool) -> Tally:
        """Every case under one order of keys."""
        tally = Tally()
        for number, case in enumerate(cases):
            started = time.perf_counter()
            self._case(case, tally, any_order=any_order, with_masks=number % self.masks_every == 0)
            if self.progress:
                print(f"{case.name} {time.perf_counter() - started:.3f} s", file=sys.stderr)
        return tally

    def _case(self, case: Case, tally: Tally, *, any_order: bool, with_masks: bool) -> None:
        gc.collect(0)
        started = time.perf_counter()
        try:
            grammar = compile(JsonSchema(schema=case.schema, any_order=any_order), self.vocabulary)
        except GrammarRefused as refusal:
            tally.refused[case.name] = f"{refusal.at}: {refusal}"
            return
        tally.compile_s.append(time.perf_counter() - started)
        wrong = [self._wrong(grammar, case.name, test, tally, with_masks) for test in case.tests]
        tally.num_right_tests += wrong.count(False)
        tally.num_right += not any(wrong)
        accepted_wrongly = any(name == case.name for name, _ in tally.wrong_accepts)
        tally.num_declared += any(wrong) and not accepted_wrongly and _is_stricter(grammar)

    def _wrong(self, grammar: CompiledGrammar, name: str, test: tuple[str, bool], tally: Tally, masks: bool) -> bool:
        text, is_valid = test
        accepted = self._walk(grammar, text, tally) if masks else _accepts(grammar.initial(), text)
        if accepted == is_valid:
            return False
        (tally.wrong_accepts if accepted else tally.wrong_rejects).append((name, text[:300]))
        return True

    def _walk(self, grammar: CompiledGrammar, text: str, tally: Tally) -> bool:
        """Token by token, the mask of every step taken twice: when first met, and warm."""
        state = grammar.initial()
        for token in self.tokenizer.encode(text, follows="text"):
            tally.first_mask_s.append(self._timed_mask(state))
            tally.mask_s.append(self._timed_mask(state))
            allowed = bool(self.row[token // 32] >> (token % 32) & 1)
            state = state.advance(token)
            if allowed == state.is_dead:
                raise NotCorrect(
                    f"mask says {allowed}, advance says {not state.is_dead}: token {token} in {text[:200]!r}"
                )
            if state.is_dead:
                return False
        return state.accepting

    def _timed_mask(self, state: GrammarState) -> float:
        started = time.perf_counter()
        state.mask(self.row)
        return time.perf_counter() - started


def _accepts(state: GrammarState, text: str) -> bool:
    return state.advance_bytes(text.encode()).accepting


def _is_stricter(grammar: CompiledGrammar) -> bool:
    return any(isinstance(entry, LedgerEntry) and entry.status == "stricter" for entry in grammar.ledger)


def _read(suite: str, path: Path) -> Iterator[Case]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("optional"):
            continue
        schema = json.dumps(_with_draft(row["schema"], row.get("draft")), ensure_ascii=False)
        if suite == "micro":
            tests = [(text, True) for text in row["accept"]] + [(text, False) for text in row["reject"]]
        else:
            tests = [(json.dumps(test["instance"], ensure_ascii=False), test["valid"]) for test in row["tests"]]
        yield Case(str(row.get("id") or row["name"]), schema, tuple(tests))


def _with_draft(schema: object, draft: object) -> object:
    """The suite names the draft beside the schema; a schema that does not name its own is of the newest."""
    if draft != "draft7" or not isinstance(schema, dict) or "$schema" in schema:
        return schema
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
