"""Lark's tables without what a vocabulary can't spell: see `automaton.expressible`."""

from dataclasses import replace

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.expressible import cannot_express, spelling_without
from ramet.constrained.lark.load import Tables, Terminal


def spelt_tables(tables: Tables, missing: frozenset[int]) -> Tables:
    """The same tables where no terminal depends on the missing bytes. Refuses a terminal of which nothing is left."""
    if not missing:
        return tables
    spelling = spelling_without(missing)
    known: dict[int, Terminal] = {}

    def spelt(terminal: Terminal) -> Terminal:
        if id(terminal) not in known:
            body = spelling.narrowed(ir.Lang(terminal.dfa))
            assert isinstance(body, ir.Lang), "a language stays one"
            if body.dfa.is_empty:
                raise cannot_express(missing, at=f"$.grammar/{terminal.name}")
            known[id(terminal)] = terminal if body.dfa is terminal.dfa else replace(terminal, dfa=body.dfa)
        return known[id(terminal)]

    return replace(tables, lexers={number: tuple(map(spelt, lexer)) for number, lexer in tables.lexers.items()})
