"""Texts as regular languages: the string records, worked out. Code points in, automata out.

Every automaton that a schema asks for (patterns, formats, enumerations) is built once and kept, in small caches, for
automata are large; intersections are made only when somebody needs the whole.
"""

from functools import lru_cache, reduce

from ramet.constrained.json_schema.records import Finite, Record, Strings
from ramet.constrained.regex import dfa as automata
from ramet.constrained.regex.dfa import Dfa

MAX_STATES = 20_000
"""Of one intersection of patterns, formats and lengths."""
_MAX_LEVELS = 4_096


@lru_cache(maxsize=512)
def texts(values: tuple[str, ...]) -> Dfa:
    """Exactly these texts."""
    return automata.from_texts(values, automata.MAX_CODE_POINT)


@lru_cache(maxsize=256)
def complement(language: Dfa) -> Dfa:
    """All other texts."""
    return automata.complement(language, max_states=MAX_STATES)


@lru_cache(maxsize=512)
def all_of(languages: frozenset[Dfa]) -> Dfa | None:
    """The intersection; None for any text."""
    if not languages:
        return None
    smallest_first = sorted(languages, key=lambda language: len(language.rows))
    return reduce(lambda a, b: automata.intersection(a, b, max_states=MAX_STATES), smallest_first)


def either(a: Strings, b: Strings) -> Strings:
    """The union of two records of equal lengths."""
    if not a.languages or not b.languages:
        return Strings(frozenset(), a.minimum, a.maximum)
    common = a.languages & b.languages
    one, other = all_of(a.languages - common), all_of(b.languages - common)
    if one is None or other is None:
        return Strings(common, a.minimum, a.maximum)
    return Strings(common | {_union(one, other)}, a.minimum, a.maximum)


@lru_cache(maxsize=2048)
def is_empty(record: Strings) -> bool:
    """Whether no text fits."""
    if record.maximum is not None and record.minimum > record.maximum:
        return True
    language = all_of(record.languages)
    if language is None:
        return False
    return language.is_empty or not _has_length(language, record.minimum, record.maximum)


def accepts(record: Strings, text: str) -> bool:
    """Whether the text fits."""
    if len(text) < record.minimum or (record.maximum is not None and len(text) > record.maximum):
        return False
    return all(language.matches(text) for language in record.languages)


def as_strings(record: Record) -> Strings:
    """A record of texts, finite or not, as languages."""
    if isinstance(record, Finite):
        return Strings(frozenset({texts(tuple(str(value) for value in record.values))}))
    assert isinstance(record, Strings)
    return record


@lru_cache(maxsize=128)
def whole(record: Strings) -> Dfa:
    """The record as one automaton, lengths included. Raises TooManyStates where bounds make it large."""
    language = all_of(record.languages)
    if language is None:
        language = automata.any_text()
    if record.minimum == 0 and record.maximum is None:
        return language
    lengths = automata.length_between(record.minimum, record.maximum, max_states=MAX_STATES)
    return automata.intersection(language, lengths, max_states=MAX_STATES)


@lru_cache(maxsize=256)
def _union(a: Dfa, b: Dfa) -> Dfa:
    return automata.union(a, b, max_states=MAX_STATES)


def _has_length(language: Dfa, minimum: int, maximum: int | None) -> bool:
    """Whether a text of a length in the range is accepted; walks the sets of states by length."""
    if minimum == 0 and maximum is None:
        return True
    states, seen = frozenset({0}), set()
    for length in range(_MAX_LEVELS if maximum is None else min(maximum + 1, _MAX_LEVELS)):
        if length >= minimum and states & language.accepting:
            return True
        if length >= minimum:
            if states in seen:
                return False
            seen.add(states)
        states = frozenset(target for state in states for _, _, target in language.rows[state])
        if not states:
            return False
    return maximum is None or maximum >= _MAX_LEVELS


@lru_cache(maxsize=256)
def any_of(languages: frozenset[Dfa]) -> Dfa:
    """The union."""
    smallest_first = sorted(languages, key=lambda language: len(language.rows))
    return reduce(_union, smallest_first) if smallest_first else automata.nothing()


@lru_cache(maxsize=1024)
def few(language: Dfa) -> tuple[str, ...]:
    """All texts of a language that has at most 64; none of any other."""
    return tuple(automata.enumerate_finite(language, 64) or ())


@lru_cache(maxsize=256)
def both(a: Dfa, b: Dfa) -> Dfa:
    """The intersection of two."""
    return automata.intersection(a, b, max_states=MAX_STATES)


@lru_cache(maxsize=256)
def without(a: Dfa, b: Dfa) -> Dfa:
    """Texts of the first that are not in the second."""
    return automata.difference(a, b, max_states=MAX_STATES)
