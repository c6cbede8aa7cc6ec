"""Grammars over single bytes, and texts marked with a caret where they first cease to be legal."""

import json
from typing import Any

from ramet.constrained.compile import compile
from ramet.constrained.grammar import CompiledGrammar
from ramet.constrained.spec import JsonSchema
from ramet.constrained.vocabulary import Vocabulary

BYTES = Vocabulary([bytes([byte]) for byte in range(256)])


def grammar_of(schema: Any, **options: Any) -> CompiledGrammar:
    """The grammar of a schema, given as a value or as JSON text."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return compile(JsonSchema(schema=text, **options), BYTES)


def with_caret(grammar: CompiledGrammar, text: str) -> str:
    """`text`, with a caret before the character that is refused, or at the end if it is a part only."""
    state = grammar.initial()
    for index, character in enumerate(text):
        state = state.advance_bytes(character.encode())
        if state.is_dead:
            return f"{text[:index]}^{text[index:]}"
    return text if state.accepting else f"{text}^"


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    """Whether the whole text is legal."""
    return grammar.initial().advance_bytes(text.encode()).accepting
