"""The front door: a JSON Schema spec -> a grammar and its ledger, or GrammarRefused with a pointer.

`unsupported="error"` refuses the first keyword that cannot be enforced. `"declare"` leaves such keywords out one by
one, says so in the ledger, and `validate_final` checks the finished value against all of them.
"""

from dataclasses import dataclass

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.spacing import spacing
from ramet.constrained.json_schema import text as json_text
from ramet.constrained.json_schema.account import account
from ramet.constrained.json_schema.algebra import Algebra, Unsupported
from ramet.constrained.json_schema.document import Document
from ramet.constrained.json_schema.keywords import KEYWORDS
from ramet.constrained.json_schema.lowering import Lowering
from ramet.constrained.json_schema.text import Json
from ramet.constrained.json_schema.validate import Failure, failures
from ramet.constrained.ledger import Ledger
from ramet.constrained.spec import JsonObject, JsonSchema
from ramet.runtime.errors import GrammarRefused

MAX_DEFERRED = 64
_EXPECTED = {
    "invalid_schema": "a valid JSON Schema",
    "circular_ref": "references that lead to something",
    "too_complex": "a schema within the limits",
    "unsupported_pattern": "a regular pattern",
}


@dataclass(frozen=True, slots=True)
class Lowered:
    """What the machine runs, and what the user may know about it."""

    grammar: ir.Grammar
    ledger: Ledger


def lower(spec: JsonSchema) -> Lowered:
    """The grammar of a schema. Raises GrammarRefused: malformed text, dead references, what cannot be enforced."""
    try:
        return _lower(spec)
    except RecursionError:
        got = "one nested or chained too deeply"
        json_text.refuse("a schema of ordinary nesting", got, "", "Flatten the schema.", code="limit_depth")


def lower_object(spec: JsonObject) -> Lowered:
    """The grammar of `json_object`: any JSON object."""
    return lower(JsonSchema(schema='{"type": "object"}', whitespace=spec.whitespace))


def validate_final(schema: str, value: Json) -> list[Failure]:
    """What a finished value fails of a schema's text, deferred keywords included; empty for a valid value."""
    return failures(Document(json_text.parse(schema)), value)


def _lower(spec: JsonSchema) -> Lowered:
    root = json_text.parse(spec.schema)
    if not isinstance(root, (dict, bool)):
        json_text.refuse("a schema: an object or a boolean", root, "", code="invalid_schema")
    document = Document(root)
    deferred: dict[tuple[int, str], str] = {}
    while True:
        try:
            grammar = _attempt(document, spec, frozenset(deferred))
            break
        except Unsupported as problem:
            key = (problem.schema.number, problem.keyword)
            may_defer = spec.unsupported == "declare" and not problem.final and not problem.negated
            if not may_defer or key in deferred or len(deferred) >= MAX_DEFERRED:
                raise _refusal(problem) from None
            deferred[key] = f"checked after the generation: {problem.reason}"
    ledger = account(document, spec, deferred)
    return Lowered(ir.Grammar(grammar.rules, grammar.start, tuple(ledger)), ledger)


def _attempt(document: Document, spec: JsonSchema, deferred: frozenset[tuple[int, str]]) -> ir.Grammar:
    algebra = Algebra(document, KEYWORDS, deferred=deferred)
    goal = algebra.goal(document.root)
    lowering = Lowering(algebra, spacing=spacing(spec.whitespace), any_order=spec.any_order)
    grammar = lowering.grammar(goal)
    if algebra.is_empty(goal):
        json_text.refuse("a schema that some value satisfies", "one that nothing satisfies", "",
                         "Its keywords contradict each other.", code="unsatisfiable")  # fmt: skip
    return grammar


def _refusal(problem: Unsupported) -> GrammarRefused:
    pointer = f"#{problem.schema.pointer}" + (f"/{json_text.escape(problem.keyword)}" if problem.keyword else "")
    value = problem.schema.value
    got = value.get(problem.keyword) if isinstance(value, dict) and problem.keyword else value
    expected = f"{_EXPECTED.get(problem.code, 'a schema that can be enforced exactly')} ({problem.reason})"
    return GrammarRefused(expected=expected, got=got, at=pointer, hint=problem.hint, code=problem.code)
