"""The machine reads what the interpreter reads, byte by byte, and never takes a way that has no end."""

import random
import sys
from pathlib import Path

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.interpreter import Interpreter
from ramet.constrained.automaton.lowering import lower
from ramet.constrained.automaton.machine import Configuration, Machine
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from random_grammars import GRAMMARS

BYTES = [*b'abcx"{}[],: \n\\nu01(', *"é".encode(), *b"true2"]


def begin(machine: Machine, grammar: ir.Grammar) -> tuple[Configuration, ...]:
    state = machine.start_of(lower(grammar, machine.space, {}))
    return (Configuration(state, 0, None, None),)


MACHINE = Machine()  # shared, as in a server: one grammar's states must not disturb another's


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(GRAMMARS, st.integers(0, 2**32))
def test_walks_as_the_interpreter_does(grammar: ir.Grammar, seed: int) -> None:
    oracle = Interpreter(grammar)
    theirs = oracle.start()
    try:
        ours = begin(MACHINE, grammar)
    except GrammarRefused:
        assert not oracle.is_live(theirs)
        return
    assert oracle.is_live(theirs)
    choose = random.Random(seed)
    for position in range(14):
        accepts = MACHINE.accepting(ours, position) is not None
        assert accepts == oracle.accepts(theirs)
        steps = {byte: MACHINE.read(ours, byte, position) for byte in BYTES}
        expected = {byte: oracle.step(theirs, byte) for byte in BYTES}
        legal = [byte for byte in BYTES if expected[byte]]
        assert [byte for byte in BYTES if steps[byte]] == legal
        if not legal:
            assert accepts or oracle.is_live(theirs)
            return
        byte = choose.choice(legal)
        ours, theirs = steps[byte], expected[byte]
        assume(len(theirs) < 60)
