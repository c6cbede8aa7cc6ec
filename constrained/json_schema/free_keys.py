"""The keys that an object does not declare, cut into disjoint languages by what their values must satisfy.

Every key language of a record (patterns, property names) is an atom; a key belongs to some of the atoms, and the set of
these decides which rules apply. Declared names are no free keys. Classes that nothing can satisfy are left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ramet.constrained.json_schema import languages
from ramet.constrained.json_schema.algebra import Algebra
from ramet.constrained.json_schema.records import Goal, Keys, Objects
from ramet.constrained.regex import dfa as automata
from ramet.constrained.regex.dfa import Dfa

MAX_CLASSES = 256
MAX_CUT_STATES = 30_000
"""Automaton states made while cutting: patterns that overlap in every way double with each one."""


class TooManyClasses(Exception):
    """The patterns of an object overlap in too many ways."""


@dataclass(frozen=True, slots=True)
class KeyClass:
    """Keys whose values all must reach one goal."""

    keys: Dfa | None
    """None: any key at all."""
    goal: Goal
    inside: frozenset[Keys]
    """The key sets of the record's `exists` that hold these keys."""


def key_classes(algebra: Algebra, record: Objects, declared: Iterable[str]) -> list[KeyClass]:
    """The free keys of a record. Raises TooManyClasses, TooManyStates."""
    names = frozenset(declared)
    singles = _single_names(record, names)
    atoms = list(_atoms(record))
    out: dict[tuple[Goal, frozenset[Keys]], list[Dfa]] = {}
    for name in singles:
        _note(algebra, record, out, [keys for keys in _key_sets(record) if keys.holds(name)], languages.texts((name,)))
    for language, inside in _cut(names | singles, atoms):
        held = [keys for keys in _key_sets(record) if _holds(keys, inside)]
        _note(algebra, record, out, held, language)
    return [KeyClass(_joined(found), goal, inside) for (goal, inside), found in out.items()]


def _note(
    algebra: Algebra, record: Objects, out: dict[tuple[Goal, frozenset[Keys]], list[Dfa]], held: list[Keys], keys: Dfa
) -> None:
    goal = algebra.joined(*(goal for rule_keys, goal in record.rules if rule_keys in held))
    if algebra.is_empty(goal):
        return
    wanted = frozenset(exists for exists, _ in record.exists if exists in held)
    out.setdefault((goal, wanted), []).append(keys)


def _key_sets(record: Objects) -> Iterator[Keys]:
    yield from (keys for keys, _ in record.rules)
    yield from (keys for keys, _ in record.exists)


def _single_names(record: Objects, declared: frozenset[str]) -> frozenset[str]:
    """Names that rules mention without declaring them, and the texts of patterns that match a few texts only."""
    found: set[str] = set()
    for keys in _key_sets(record):
        found |= keys.names
        for language in keys.languages:
            found |= frozenset(languages.few(language))
    return frozenset(found) - declared


def _atoms(record: Objects) -> Iterator[Dfa]:
    """The languages that cut the free keys, each once; those of a few texts are handled text by text."""
    found = {language for keys in _key_sets(record) for language in keys.languages}
    yield from sorted(
        (d for d in found if not languages.few(d) and not d.is_empty), key=lambda d: (len(d.rows), repr(d.rows))
    )


def _cut(excluded: frozenset[str], atoms: list[Dfa]) -> Iterator[tuple[Dfa, frozenset[Dfa]]]:
    """(language, the atoms it lies in) for each way to lie in some atoms and outside of the others."""
    everything = automata.any_text()
    if excluded:
        everything = languages.complement(languages.texts(tuple(sorted(excluded))))
    classes: list[tuple[Dfa, frozenset[Dfa]]] = [(everything, frozenset())]
    num_states = 0
    for atom in atoms:
        following: list[tuple[Dfa, frozenset[Dfa]]] = []
        for language, inside in classes:
            common = languages.both(language, atom)
            if common.is_empty:
                following.append((language, inside))
                continue
            following.append((common, inside | {atom}))
            rest = languages.without(language, atom)
            if not rest.is_empty:
                following.append((rest, inside))
        classes = following
        num_states += sum(len(language.rows) for language, _ in classes)
        if len(classes) > MAX_CLASSES or num_states > MAX_CUT_STATES:
            raise TooManyClasses
    yield from classes


def _holds(keys: Keys, inside: frozenset[Dfa]) -> bool:
    """Whether a free key that lies in exactly these atoms is in the set (names and few-text languages are not free)."""
    return bool(keys.languages & inside) != keys.negated


def _joined(parts: list[Dfa]) -> Dfa | None:
    language = languages.any_of(frozenset(parts))
    return None if language == automata.any_text() else language
