"""Specs in which a Lark grammar is a part -> the parts and what may follow what.

A network and a Lark grammar keep different books, so they are not made into one automaton. What holds no Lark grammar
is one part, however it is composed; around them, sequence, choice, repetition and tag become steps from part to part,
as positions of a regular expression follow each other (after Glushkov).
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ramet.constrained import spec as specs
from ramet.constrained.automaton import ir
from ramet.constrained.lark.gbnf import is_gbnf
from ramet.constrained.lark.load import Tables, load
from ramet.constrained.parts import END, Node, Parts, Step, Tags
from ramet.constrained.segments import Composed, expression
from ramet.runtime.errors import GrammarRefused

MAX_NODES = 4096
MAX_STEPS = 100_000


def needs_lexer(spec: specs.Spec) -> bool:
    """Whether a Lark grammar (not GBNF, which is a network) is somewhere in the spec."""
    match spec:
        case specs.Lark():
            return not is_gbnf(spec.grammar)
        case specs.Sequence() | specs.OneOf():
            return any(map(needs_lexer, spec.items))
        case specs.Repeat() | specs.Tagged():
            return needs_lexer(spec.item)
        case _:
            return False


def parts_of(spec: specs.Spec) -> Parts:
    """The parts of a spec and their order. Raises GrammarRefused."""
    return _Assembly().parts(spec)


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A piece under construction: where it may begin and end, each with the tags on the way, and whether it may be
    nothing at all."""

    first: tuple[Step, ...]
    last: tuple[Step, ...]
    """Of these, `target` is the node that is left."""
    empty: Tags | None


_NOTHING = _Fragment((), (), ())


class _Assembly:
    def __init__(self) -> None:
        self.items: list[ir.Grammar | Tables] = []
        self.nodes: list[int] = []
        self.steps: list[list[Step]] = []
        self._known: dict[object, int] = {}
        self._num_steps = 0

    def parts(self, spec: specs.Spec) -> Parts:
        """Node 0 is the empty text before everything."""
        begin = self._leaf(specs.Literal_(text=""), lambda: Composed().grammar(ir.Literal(b"")))
        whole = self._then(begin, self._fragment(spec, "$"))
        for left in whole.last:
            self._step(left.target, Step(END, left.tags))
        nodes = zip(self.nodes, self.steps, strict=True)
        return Parts(tuple(self.items), tuple(Node(item, tuple(dict.fromkeys(steps))) for item, steps in nodes))

    def _fragment(self, spec: specs.Spec, at: str) -> _Fragment:
        match spec:
            case specs.Lark() if needs_lexer(spec):
                return self._leaf(spec, lambda: _loaded(spec, at))
            case specs.Sequence() if needs_lexer(spec):
                return self._in_order(spec.items, at)
            case specs.OneOf() if needs_lexer(spec):
                return self._one_of(spec.items, at)
            case specs.Repeat() if needs_lexer(spec):
                return self._repeat(spec, at)
            case specs.Tagged() if needs_lexer(spec):
                return _tagged(self._fragment(spec.item, f"{at}.item"), spec.name)
            case _:
                return self._leaf(spec, lambda: _network([(spec, at)], ir.Seq))

    def _leaf(self, key: object, make: Callable[[], ir.Grammar | Tables]) -> _Fragment:
        """A node of its own; equal ones share what is made for them."""
        if key not in self._known:
            self._known[key] = len(self.items)
            self.items.append(make())
        if len(self.nodes) >= MAX_NODES:
            raise _too_large(f"more than {MAX_NODES} parts")
        self.nodes.append(self._known[key])
        self.steps.append([])
        step = (Step(len(self.nodes) - 1, ()),)
        return _Fragment(step, step, None)  # a part that takes the empty text is left as soon as it is entered

    def _in_order(self, items: Sequence[specs.Spec], at: str) -> _Fragment:
        """What stands between two Lark grammars is one part."""
        found = _NOTHING
        placed = [(item, f"{at}.items[{i}]") for i, item in enumerate(items)]
        for has_lexer, group in itertools.groupby(placed, lambda pair: needs_lexer(pair[0])):
            own = list(group)
            if not has_lexer:
                key = ("in order", *(item for item, _ in own))
                found = self._then(found, self._leaf(key, lambda own=own: _network(own, ir.Seq)))  # type: ignore[misc]
                continue
            for item, place in own:
                found = self._then(found, self._fragment(item, place))
        return found

    def _one_of(self, items: Sequence[specs.Spec], at: str) -> _Fragment:
        placed = [(item, f"{at}.items[{i}]") for i, item in enumerate(items)]
        plain = [pair for pair in placed if not needs_lexer(pair[0])]
        found = [self._fragment(item, place) for item, place in placed if needs_lexer(item)]
        if plain:
            key = ("one of", *(item for item, _ in plain))
            found.append(self._leaf(key, lambda: _network(plain, ir.Alt)))
        empty = next((each.empty for each in found if each.empty is not None), None)
        return _Fragment(
            tuple(step for each in found for step in each.first),
            tuple(step for each in found for step in each.last),
            empty,
        )

    def _repeat(self, spec: specs.Repeat, at: str) -> _Fragment:
        """A copy of the item for each time that is counted; without a maximum, the last goes round."""
        minimum, maximum = spec.minimum, spec.maximum
        if minimum < 0 or (maximum is not None and maximum < minimum):
            raise GrammarRefused(expected="0 <= minimum <= maximum", got=(minimum, maximum), at=at)
        if maximum == 0:
            return _NOTHING
        first = self._fragment(spec.item, f"{at}.item")
        tail = _NOTHING if maximum is not None else self._round(self._more(spec, at))
        for number in range(maximum if maximum is not None else max(minimum, 1), 1, -1):
            tail = self._then(self._more(spec, at), tail)
            if number > minimum:
                tail = _optional(tail)
        whole = self._then(first, tail)
        return whole if minimum else _optional(whole)

    def _more(self, spec: specs.Repeat, at: str) -> _Fragment:
        """The item once more, behind its separator."""
        item = self._fragment(spec.item, f"{at}.item")
        if not spec.separator:
            return item
        return self._then(self._fragment(specs.Literal_(text=spec.separator), at), item)

    def _round(self, fragment: _Fragment) -> _Fragment:
        self._link(fragment.last, fragment.first)
        return _optional(fragment)

    def _then(self, left: _Fragment, right: _Fragment) -> _Fragment:
        self._link(left.last, right.first)
        first, last = left.first, right.last
        if left.empty is not None:
            first += tuple(Step(step.target, left.empty + step.tags) for step in right.first)
        if right.empty is not None:
            last += tuple(Step(step.target, step.tags + right.empty) for step in left.last)
        both = left.empty is not None and right.empty is not None
        return _Fragment(first, last, (left.empty or ()) + (right.empty or ()) if both else None)

    def _link(self, last: Iterable[Step], first: Sequence[Step]) -> None:
        for left in last:
            for begun in first:
                self._step(left.target, Step(begun.target, left.tags + begun.tags))

    def _step(self, node: int, step: Step) -> None:
        self._num_steps += 1
        if self._num_steps > MAX_STEPS:
            raise _too_large(f"more than {MAX_STEPS} steps between parts")
        self.steps[node].append(step)


def _network(placed: Sequence[tuple[specs.Spec, str]], kind: type[ir.Seq] | type[ir.Alt]) -> ir.Grammar:
    composed = Composed()
    return composed.grammar(kind(tuple(expression(item, composed, at) for item, at in placed)))


def _loaded(spec: specs.Lark, at: str) -> Tables:
    try:
        return load(spec.grammar, spec.start)
    except GrammarRefused as refusal:
        raise refusal.moved((refusal.at or "").replace("$", at, 1)) from None


def _tagged(fragment: _Fragment, name: str) -> _Fragment:
    begin: Tags = ((name, "begin"),)
    end: Tags = ((name, "end"),)
    return _Fragment(
        tuple(Step(step.target, begin + step.tags) for step in fragment.first),
        tuple(Step(step.target, step.tags + end) for step in fragment.last),
        None if fragment.empty is None else begin + fragment.empty + end,
    )


def _optional(fragment: _Fragment) -> _Fragment:
    return _Fragment(fragment.first, fragment.last, fragment.empty if fragment.empty is not None else ())


def _too_large(got: str) -> GrammarRefused:
    return GrammarRefused(
        expected="Lark grammars in repetitions that are small",
        got=got,
        at="$",
        hint="Each counted repetition of a Lark grammar is a copy: leave the maximum out, or write the part as GBNF.",
        code="grammar_too_complex",
    )
