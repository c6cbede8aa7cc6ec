"""The front door: `compile(spec, vocabulary)` -> a grammar that masks tokens. Cached per vocabulary and spec.

grammar = compile(Regex(pattern="(yes|no)"), vocabulary)
state = grammar.initial()
state.mask(row)                 # row: int32 [ceil(V / 32)]
state = state.advance(token)    # the old state is still good: that is the rollback
"""

import threading
import weakref

import msgspec

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.lowering import lower
from ramet.constrained.cache import GrammarCache
from ramet.constrained.grammar import CompiledGrammar, Engine, NetworkGrammar
from ramet.constrained.lark.automaton import LarkGrammar
from ramet.constrained.lark.gbnf import is_gbnf
from ramet.constrained.lark.load import Tables, load
from ramet.constrained.segments import compose
from ramet.constrained.spec import Lark, Spec
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused

_caches: "weakref.WeakKeyDictionary[Vocabulary, GrammarCache]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def compile(spec: Spec, vocabulary: Vocabulary) -> CompiledGrammar:
    """The grammar of a spec over a vocabulary. Raises GrammarRefused (a value for the client, with its pointer)."""
    key = msgspec.json.encode(spec)
    return cache_of(vocabulary).get(key, lambda engine: back_end(front_end(spec), engine))


def compile_grammar(grammar: ir.Grammar, engine: Engine) -> CompiledGrammar:
    """An intermediate grammar over an engine, without cache."""
    try:
        with engine.lowering:
            rule = lower(grammar, engine.machine.space, engine.vocabulary.special)
            return NetworkGrammar(engine, engine.machine.start_of(rule), grammar.notes)
    except RecursionError:
        raise GrammarRefused(
            expected="a grammar of ordinary nesting", got="too deep a nesting", at="#", code="grammar_too_complex"
        ) from None


def cache_of(vocabulary: Vocabulary) -> GrammarCache:
    """The one cache of a vocabulary."""
    with _lock:
        found = _caches.get(vocabulary)
        if found is None:
            found = _caches[vocabulary] = GrammarCache(vocabulary)
        return found


def front_end(spec: Spec) -> ir.Grammar | Tables:
    """The part of a compilation that knows no vocabulary, and in which hostile input can be slow."""
    if isinstance(spec, Lark) and not is_gbnf(spec.grammar):
        return load(spec.grammar, spec.start)
    return compose(spec)


def back_end(grammar: ir.Grammar | Tables, engine: Engine) -> CompiledGrammar:
    """The rest, over an engine."""
    if isinstance(grammar, Tables):
        return LarkGrammar(grammar, engine.vocabulary)
    return compile_grammar(grammar, engine)
