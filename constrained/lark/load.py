"""Lark text -> LALR(1) tables and terminals as byte automata, by lark's own loader.

Whatever lark's loader takes (imports from its library, templates, priorities, %extend, %override, %ignore) comes free.
Refused, with lark's own words: conflicts, syntax errors; and with ours: terminals without a pattern (%declare), files
next to the server (relative imports), look-around that is no regular language.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import lark
from lark.exceptions import GrammarError, LarkError
from lark.lexer import PatternStr, TerminalDef

from ramet.constrained.regex import dfa as regular
from ramet.constrained.regex.dfa import Dfa, trimmed
from ramet.constrained.regex.language import language
from ramet.constrained.regex.syntax import has_lazy_quantifier
from ramet.constrained.regex.text import to_utf8
from ramet.runtime.errors import GrammarRefused

MAX_GRAMMAR_CHARACTERS = 1 << 20
END = "$END"
_RELATIVE_IMPORT = re.compile(r"^\s*%import\s+\.", re.MULTILINE)
_FLAGS = frozenset("isx")


@dataclass(frozen=True)
class Reduce:
    """Replace the last `length` states by `origin`."""

    origin: str
    length: int


Action = int | Reduce
"""Shift to a state, or reduce."""


@dataclass(frozen=True, eq=False)
class Terminal:
    """A terminal of a lexer, with the keywords that it may turn into."""

    name: str
    dfa: Dfa
    keywords: tuple[tuple[str, Dfa], ...]
    """(type, exactly these bytes), first match first."""


@dataclass(frozen=True, eq=False)
class Tables:
    """A grammar ready to run."""

    states: Mapping[int, Mapping[str, Action]]
    start: int
    end: int
    lexers: Mapping[int, tuple[Terminal, ...]]
    """Parser state -> its terminals, in the order in which lark tries them."""
    ignored: frozenset[str]


class NotLalr(GrammarRefused):
    """Lark's loader makes no LALR(1) tables of it: another engine may still take it."""


def load(grammar: str, start: str) -> Tables:
    """The tables of a grammar. Raises GrammarRefused."""
    if len(grammar) > MAX_GRAMMAR_CHARACTERS:
        raise _refused(f"at most {MAX_GRAMMAR_CHARACTERS} characters of grammar", len(grammar), "")
    if _RELATIVE_IMPORT.search(grammar):
        raise _refused("imports from lark's own library", "a relative %import", "Write the rules out instead.")
    parser = _parser(grammar, start)
    table = parser.parser.parser._parse_table
    patterns = {terminal.name: terminal for terminal in parser.terminals}
    lexers = _Lexers(patterns)
    states = {number: _actions(row) for number, row in table.states.items()}
    ignored = frozenset(parser.ignore_tokens)
    return Tables(
        states=states,
        start=table.start_states[start],
        end=table.end_states[start],
        lexers={
            number: lexers.of(frozenset((row.keys() & patterns.keys()) | ignored)) for number, row in states.items()
        },
        ignored=ignored,
    )


def _parser(grammar: str, start: str) -> Any:
    try:
        return lark.Lark(grammar, start=start, parser="lalr", lexer="contextual", maybe_placeholders=False)
    except GrammarError as error:
        raise _not_lalr(
            "a grammar that is LALR(1)", _shown(error), "Lark found a conflict or an error in it."
        ) from None
    except (LarkError, OSError, re.error, ValueError, KeyError) as error:
        raise _not_lalr("a Lark grammar", _shown(error), "Lark can't read it.") from None


def _not_lalr(expected: str, got: str, hint: str) -> NotLalr:
    return NotLalr(expected=expected, got=got, at="$.grammar", hint=hint, code="invalid_grammar")


def _shown(error: Exception) -> str:
    return " ".join(str(error).split())[:600]


def _refused(expected: str, got: object, hint: str) -> GrammarRefused:
    return GrammarRefused(expected=expected, got=got, at="$.grammar", hint=hint, code="invalid_grammar")


def _actions(row: Mapping[str, tuple[Any, Any]]) -> dict[str, Action]:
    found: dict[str, Action] = {}
    for name, (action, argument) in row.items():
        shifts = str(getattr(action, "name", action)) == "Shift"
        found[name] = int(argument) if shifts else Reduce(argument.origin.name, len(argument.expansion))
    return found


class _Lexers:
    """The terminals of each parser state, as lark's contextual lexer orders them."""

    def __init__(self, patterns: Mapping[str, TerminalDef]) -> None:
        self._patterns = patterns
        self._known: dict[frozenset[str], tuple[Terminal, ...]] = {}

    def of(self, names: frozenset[str]) -> tuple[Terminal, ...]:
        """The lexer of states that accept these terminals."""
        if names not in self._known:
            self._known[names] = self._made([self._patterns[name] for name in names])
        return self._known[names]

    def _made(self, terminals: list[TerminalDef]) -> tuple[Terminal, ...]:
        """Lark's order; a string that a pattern of its priority matches becomes a keyword of that pattern."""
        strings = [t for t in terminals if isinstance(t.pattern, PatternStr)]
        keywords: dict[str, list[TerminalDef]] = {}
        inside: set[str] = set()
        for terminal in terminals:
            if isinstance(terminal.pattern, PatternStr):
                continue
            dfa = terminal_language(terminal)
            for string in strings:
                if string.priority == terminal.priority and dfa.matches(string.pattern.value.encode()):
                    keywords.setdefault(terminal.name, []).append(string)
                    if frozenset(string.pattern.flags) <= frozenset(terminal.pattern.flags):
                        inside.add(string.name)
        tried = sorted(
            (t for t in terminals if t.name not in inside),
            key=lambda t: (-t.priority, -t.pattern.max_width, -len(t.pattern.value), t.name),
        )
        return tuple(self._terminal(terminal, keywords.get(terminal.name, [])) for terminal in tried)

    def _terminal(self, terminal: TerminalDef, keywords: list[TerminalDef]) -> Terminal:
        words = tuple((keyword.name, terminal_language(keyword)) for keyword in keywords)
        return Terminal(terminal.name, terminal_language(terminal), words)


def terminal_language(terminal: TerminalDef) -> Dfa:
    """The bytes of a terminal. Refuses what is declared only, matches nothing, or is no regular language."""
    pattern = terminal.pattern
    if pattern is None:
        raise _refused("terminals with a pattern", f"%declare {terminal.name}", "")
    text = re.escape(pattern.value) if isinstance(pattern, PatternStr) else pattern.value
    flags = "".join(sorted(flag for flag in pattern.flags if flag != "u"))
    if set(flags) - _FLAGS:
        raise _refused("the flags i, s, x and u", f"{terminal.name}: {flags}", "")
    return _language(text, flags, isinstance(pattern, PatternStr), terminal.name)


@lru_cache(1024)
def _language(text: str, flags: str, is_string: bool, name: str) -> Dfa:
    found = to_utf8(language(text, whole=True, flags=flags + "p", at=f"$.grammar/{name}"))
    if not is_string and has_lazy_quantifier(text, flags=flags + "p"):
        found = _shortest_only(found)
    if found.is_empty:
        raise _refused("a terminal that matches something", name, "")
    return found


def _shortest_only(dfa: Dfa) -> Dfa:
    """A lazy terminal ends where it first can."""
    rows = tuple(() if state in dfa.accepting else row for state, row in enumerate(dfa.rows))
    return trimmed(Dfa(rows, dfa.accepting, regular.MAX_BYTE))
