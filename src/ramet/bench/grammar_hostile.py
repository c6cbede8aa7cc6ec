"""Hostile input: `ramet bench grammar --suite hostile` (or `ramet bench grammar_hostile`).

Each input goes through the compile service of the server, over the embedded model's vocabulary, under the default
limits, and is timed to its first mask or its refusal. After each, an ordinary grammar must compile. The list is run
twice, each time from an empty cache; `growth_mib` is what the second run leaves in this process beyond the first, and
`worker_mib` the worker's resident memory at the end. Option (`--set`): runs=2.
"""

import contextlib
import ctypes
import gc
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ramet.bench.form import Bar, Measured, NotCorrect
from ramet.constrained.service import CompileService
from ramet.constrained.spec import Choice, JsonSchema, Lark, Regex, Spec
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused
from ramet.runtime.weights.discover import find_default_model
from ramet.runtime.weights.source import open_source

BARS = (Bar("slowest_s", 6.0, "<="), Bar("growth_mib", 32.0, "<="), Bar("others_failed", 0, "<="))


def _schema(value: object) -> JsonSchema:
    return JsonSchema(schema=json.dumps(value))


def _deep(levels: int) -> object:
    schema: object = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    return schema


def _unions(levels: int) -> object:
    schema: object = {"type": "string"}
    for level in range(levels):
        schema = {"oneOf": [schema, {"minLength": level}]}
    return schema


def _tree(width: int, depth: int) -> object:
    if depth == 0:
        return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4)}}
    branch = {"allOf": [_tree(width, depth - 1)]}
    return {"oneOf": [{**branch, "properties": {f"q{depth}{i}": {"type": "integer"}}} for i in range(width)]}


def _wide(num_bytes: int) -> object:
    """A schema of about so many bytes of text, all of it properties."""
    entry = {"type": "string", "maxLength": 40}
    number = num_bytes // len(json.dumps({"property 00000": entry}))
    return {"type": "object", "properties": {f"property {i:05}": entry for i in range(number)}}


def inputs() -> dict[str, Spec]:
    """Fresh values, by what is hostile in them."""
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    return {
        "misspelt type": _schema({"type": "objec"}),
        "unresolvable $ref": _schema({"$ref": "#/$defs/nothing"}),
        "remote $ref": _schema({"$ref": "http://example.com/schema"}),
        "circular $ref": _schema({"$ref": "#"}),
        "$ref in a circle": _schema(circle),
        "object that must hold itself": _schema(endless),
        "enum of 10,000": _schema({"enum": [f"value {i * 7919 % 10007}" for i in range(10_000)]}),
        "anyOf of 10,000 constants": _schema({"anyOf": [{"const": f"value {i}"} for i in range(10_000)]}),
        "maxLength 100,000": _schema({"type": "string", "maxLength": 100_000}),
        "pattern and maxLength 100,000": _schema({"type": "string", "pattern": "^(a|b)*abb$", "maxLength": 100_000}),
        "maxItems 100,000": _schema({"type": "array", "maxItems": 100_000, "items": {"type": "integer"}}),
        "64 levels of objects": _schema(_deep(64)),
        "40 levels of oneOf": _schema(_unions(40)),
        "tree of oneOf": _schema(_tree(4, 4)),
        "300 negations": JsonSchema(schema='{"not":' * 300 + "{}" + "}" * 300),
        "100,000 brackets": JsonSchema(schema="[" * 100_000),
        "1 MB of properties": _schema(_wide(1_000_000)),
        "half a MB of properties": _schema(_wide(500_000)),
        "more than 1 MiB": _schema(_wide(1_200_000)),
        "1,000 required keys": _schema({"type": "object", "required": [f"r{i}" for i in range(1_000)]}),
        "overlapping patterns": _schema(
            {"patternProperties": {f"[a-z]{{{i}}}x{i}": {"type": "integer", "minimum": i} for i in range(30)}}
        ),
        "catastrophic regex": Regex(pattern="(a+)+$"),
        "exponential regex": Regex(pattern="(a|b)*a(a|b){24}"),
        "nested repetition": Regex(pattern="((a{1,1000}){1,1000}){1,1000}"),
        "many gaps": Regex(pattern="(.{1,60}a){30}[bc]"),
        "invalid regex": Regex(pattern="["),
        "double star": Regex(pattern="foo**"),
        "choice of 1 MiB": Choice(choices=("x" * (1 << 20),)),
        "grammar that does not parse": Lark(grammar="start: (a"),
        "grammar with an unknown rule": Lark(grammar="start: nothing"),
        "grammar in conflict": Lark(grammar='start: a | b\na: "x"\nb: "x"'),
        "500 open brackets": Lark(grammar="root ::= " + "(" * 500),
        "grammar with a hostile terminal": Lark(grammar="start: A\nA: /(a|b)*a(a|b){24}/"),
    }


@dataclass(slots=True)
class _Tally:
    seconds: dict[str, float] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    num_failed: int = 0


def measure(options: Mapping[str, object] | None = None) -> Measured:
    """Raises NotCorrect where an input brings down more than itself."""
    chosen = {str(key): str(value) for key, value in (options or {}).items()}
    tokenizer = open_source(find_default_model()).tokenizer()
    tally, left, worker_mib = _Tally(), [], 0.0
    for _ in range(max(2, int(chosen.get("runs", 2)))):
        worker_mib = _run(Vocabulary.from_tokenizer(tokenizer), tally)
        left.append(_resident_mib())
    served = sum(answer == "served" for answer in tally.answers.values())
    figures = {
        "inputs": len(tally.answers),
        "served": served,
        "refused": len(tally.answers) - served,
        "slowest_s": max(tally.seconds.values()),
        "median_s": sorted(tally.seconds.values())[len(tally.seconds) // 2],
        "others_failed": tally.num_failed,
        "resident_mib": left[-1],
        "growth_mib": left[-1] - left[0],
        "worker_mib": worker_mib,
    }
    notes = {"seconds": {name: round(s, 3) for name, s in tally.seconds.items()}, "answers": tally.answers}
    return Measured(figures=figures, bars=BARS, notes=notes)


def _run(vocabulary: Vocabulary, tally: _Tally) -> float:
    """Every input once. Gives the worker's resident memory afterwards."""
    with CompileService(vocabulary) as service:
        service.compile(Choice(choices=("warm",))).initial().allowed()  # the worker is up, the trie is built
        for number, (name, spec) in enumerate(inputs().items()):
            began_s = time.monotonic()
            tally.answers[name] = _answer(service, spec)
            tally.seconds[name] = max(tally.seconds.get(name, 0.0), time.monotonic() - began_s)
            tally.num_failed += not _serves_others(service, number)
        return max((_resident_mib(pid) for pid in service.worker_pids), default=0.0)


def _answer(service: CompileService, spec: Spec) -> str:
    try:
        if not service.compile(spec).initial().allowed():
            raise NotCorrect(f"a grammar that allows nothing: {spec!r:.200}")
    except GrammarRefused as refusal:
        return f"{refusal.at}: {refusal}"[:200]
    return "served"


def _serves_others(service: CompileService, number: int) -> bool:
    grammar = service.compile(Choice(choices=(f"still {number}", "here")))
    return grammar.initial().advance_bytes(f"still {number}".encode()).accepting


def _resident_mib(pid: int | None = None) -> float:
    """Resident memory, once what is free was given back."""
    if pid is None:
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # another C library may keep what is free
            ctypes.CDLL(None).malloc_trim(0)
    try:
        with open(f"/proc/{pid or 'self'}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0
