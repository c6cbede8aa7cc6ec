"""LALR(1) tables run on a stack: what a terminal does, which terminals a stack takes, whether the text may end.

A stack is a linked tuple (state, 0, stack below), the form in which configurations keep return states. Results are
remembered by stack: loops of a grammar come back to the same ones.
"""

from functools import lru_cache

from ramet.constrained.automaton.machine import Stack
from ramet.constrained.lark.load import END, Reduce, Tables

_REMEMBERED = 20_000


class Parser:
    """Pure functions of a stack."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.start: Stack = (tables.start, 0, None)
        self.shift = lru_cache(_REMEMBERED)(self._shift)
        self.wanted = lru_cache(_REMEMBERED)(self._wanted)
        self.accepts_end = lru_cache(_REMEMBERED)(self._accepts_end)

    def _shift(self, stack: Stack, kind: str) -> Stack:
        """The stack after a terminal; None: it does not fit. Ignored terminals change nothing."""
        if kind in self.tables.ignored:
            return stack
        return self._run(stack, kind)

    def _wanted(self, stack: Stack) -> frozenset[str]:
        """Terminals that fit: tables merge states, so each is tried to the end of its reductions."""
        assert stack is not None, "the start state is never popped"
        kinds = (kind for kind in self.tables.states[stack[0]] if kind != END)
        return self.tables.ignored.union(kind for kind in kinds if self.shift(stack, kind) is not None)

    def _accepts_end(self, stack: Stack) -> bool:
        """Whether the text may end."""
        return self._run(stack, END) is not None

    def _run(self, stack: Stack, kind: str) -> Stack:
        while stack is not None:
            action = self.tables.states[stack[0]].get(kind)
            if action is None:
                return None
            if not isinstance(action, Reduce):
                return (action, 0, stack)
            for _ in range(action.length):
                assert stack is not None, "a reduction pops what was pushed"
                stack = stack[2]
            assert stack is not None, "a reduction leaves the start state"
            target = self.tables.states[stack[0]][action.origin]
            assert not isinstance(target, Reduce), "after a reduction comes a shift"
            stack = (target, 0, stack)
            if kind == END and target == self.tables.end:
                return stack
        return None
