"""`pattern` and the keys of `patternProperties` as languages of texts, with the pointer where they are refused."""

from functools import lru_cache

from ramet.constrained.json_schema.algebra import Unsupported
from ramet.constrained.json_schema.document import Schema
from ramet.constrained.json_schema.languages import MAX_STATES
from ramet.constrained.json_schema.text import Json
from ramet.constrained.regex.dfa import Dfa
from ramet.constrained.regex.language import language
from ramet.runtime.errors import GrammarRefused


def pattern_language(schema: Schema, keyword: str, pattern: Json) -> Dfa:
    """The texts in which the pattern is found. Raises Unsupported at the keyword."""
    if not isinstance(pattern, str):
        raise Unsupported(schema, keyword, "a pattern must be a string", code="invalid_schema")
    try:
        return _language(pattern)
    except GrammarRefused as problem:
        reason = f"the pattern {pattern!r} can't be enforced. {problem.hint}"
        raise Unsupported(schema, keyword, reason, code="unsupported_pattern") from None


@lru_cache(maxsize=512)
def _language(pattern: str) -> Dfa:
    return language(pattern, max_states=MAX_STATES)
