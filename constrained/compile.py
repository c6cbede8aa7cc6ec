"""The front door: `compile(spec, vocabulary)` -> a grammar that masks tokens. Cached per vocabulary and spec.

grammar = compile(Regex(pattern="(yes|no)"), vocabulary)
state = grammar.initial()
state.mask(row)                 # row: int32 [ceil(V / 32)]
state = state.advance(token)    # the old state is still good: that is the rollback
"""

import threading

import msgspec

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.expressible import cannot_express, expressible
from ramet.constrained.automaton.items import Rule
from ramet.constrained.automaton.lowering import lower
from ramet.constrained.cache import GrammarCache
from ramet.constrained.composition import needs_lexer, parts_of
from ramet.constrained.grammar import CompiledGrammar, Engine, NetworkGrammar
from ramet.constrained.lark.automaton import LarkGrammar
from ramet.constrained.lark.expressible import spelt_tables
from ramet.constrained.lark.fallback import Elsewhere, MatcherGrammar, elsewhere
from ramet.constrained.lark.load import NotLalr, Tables, load
from ramet.constrained.parts import Parts, PartsGrammar
from ramet.constrained.segments import compose
from ramet.constrained.spec import Lark, Spec
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused

_lock = threading.Lock()


def compile(spec: Spec, vocabulary: Vocabulary) -> CompiledGrammar:
    """The grammar of a spec over a vocabulary. Raises GrammarRefused (a value for the client, with its pointer)."""
    key = key_of(spec)
    return cache_of(vocabulary).get(key, lambda engine: back_end(front_end(spec), engine))


def key_of(spec: Spec) -> bytes:
    """What equal specs share. Raises GrammarRefused for a text that is none."""
    try:
        return msgspec.json.encode(spec)
    except UnicodeEncodeError as error:
        raise GrammarRefused(
            expected="Unicode text", got=error.object[error.start : error.end], at="#", hint="Half a surrogate pair."
        ) from None


def compile_grammar(grammar: ir.Grammar, engine: Engine) -> NetworkGrammar:
    """An intermediate grammar over an engine, without cache."""
    try:
        with engine.lowering:
            spelt = expressible(grammar, engine.vocabulary.missing_bytes)
            rule = _lowered(spelt, grammar, engine)
            return NetworkGrammar(engine, engine.machine.start_of(rule), spelt.notes)
    except RecursionError:
        raise GrammarRefused(
            expected="a grammar of ordinary nesting", got="too deep a nesting", at="#", code="grammar_too_complex"
        ) from None


def _lowered(spelt: ir.Grammar, written: ir.Grammar, engine: Engine) -> Rule:
    """The start rule. A grammar of which nothing is left once it is spelt is refused for that."""
    space, vocabulary = engine.machine.space, engine.vocabulary
    try:
        return lower(spelt, space, vocabulary.special)
    except GrammarRefused as refusal:
        if spelt is written or refusal.code != "grammar_unsatisfiable":
            raise
        lower(written, space, vocabulary.special)  # raises where the grammar contradicts itself anyway
        raise cannot_express(vocabulary.missing_bytes, at="#") from None


def cache_of(vocabulary: Vocabulary) -> GrammarCache:
    """The one cache of a vocabulary."""
    with _lock:
        found: GrammarCache | None = vocabulary.kept.get(GrammarCache)
        if found is None:
            found = vocabulary.kept[GrammarCache] = GrammarCache(vocabulary)
        return found


FrontEnd = ir.Grammar | Tables | Elsewhere | Parts
"""What a front end makes of a spec."""


def front_end(spec: Spec) -> FrontEnd:
    """The part of a compilation that knows no vocabulary, and in which hostile input can be slow."""
    if not needs_lexer(spec):
        return compose(spec)
    if not isinstance(spec, Lark):
        return parts_of(spec)
    try:
        return load(spec.grammar, spec.start)
    except NotLalr as refusal:
        return elsewhere(spec.grammar, spec.start, refusal)


def back_end(grammar: FrontEnd, engine: Engine) -> CompiledGrammar:
    """The rest, over an engine."""
    if isinstance(grammar, Elsewhere):
        return MatcherGrammar(grammar, engine.vocabulary)
    if isinstance(grammar, Parts):
        return PartsGrammar([_part(item, engine) for item in grammar.items], grammar.nodes)
    return _part(grammar, engine)


def _part(grammar: ir.Grammar | Tables, engine: Engine) -> NetworkGrammar | LarkGrammar:
    if isinstance(grammar, Tables):
        return LarkGrammar(spelt_tables(grammar, engine.vocabulary.missing_bytes), engine.vocabulary)
    return compile_grammar(grammar, engine)
