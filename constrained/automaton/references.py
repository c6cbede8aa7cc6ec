"""What refers to what in a grammar: references of an expression, components that recur, facts by fixed point.

Components come in an order in which every component stands after those that it refers to, so each fact is found in
one pass with a small fixed point inside a component.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from ramet.constrained.automaton import ir


def parts_of(expr: ir.Expr) -> Iterator[ir.Expr]:
    """The expressions directly inside one."""
    match expr:
        case ir.Seq() | ir.Alt():
            yield from expr.items
        case ir.Tagged():
            yield expr.item
        case ir.Repeat():
            yield expr.item
            if expr.separator is not None:
                yield expr.separator
        case ir.Object():
            yield from (member.value for member in expr.members)
            yield from (free.value for free in expr.free)
        case ir.Array():
            yield from expr.prefix
            yield from expr.unique or ()
            if expr.items is not None:
                yield expr.items
            if expr.contains is not None:
                yield expr.contains.match
                yield expr.contains.other
        case _:
            pass


def refs_of(expr: ir.Expr) -> Iterator[str]:
    """The rules that an expression names, in the order of its text, with repetitions."""
    stack = [expr]
    while stack:
        here = stack.pop()
        if isinstance(here, ir.Ref):
            yield here.rule
        else:
            stack.extend(reversed(list(parts_of(here))))


def renamed(expr: ir.Expr, name: Callable[[str], str]) -> ir.Expr:
    """The same expression with every reference renamed."""
    return rebuilt(expr, lambda here: ir.Ref(name(here.rule)) if isinstance(here, ir.Ref) else here)


def rebuilt(expr: ir.Expr, change: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """The expression made anew from the inside out: each part is what `change` makes of it."""

    @cache
    def visit(here: ir.Expr) -> ir.Expr:
        match here:
            case ir.Seq() | ir.Alt():
                return change(replace(here, items=tuple(map(visit, here.items))))
            case ir.Tagged():
                return change(replace(here, item=visit(here.item)))
            case ir.Repeat():
                separator = None if here.separator is None else visit(here.separator)
                return change(replace(here, item=visit(here.item), separator=separator))
            case ir.Object():
                members = tuple(replace(member, value=visit(member.value)) for member in here.members)
                free = tuple(replace(member, value=visit(member.value)) for member in here.free)
                return change(replace(here, members=members, free=free))
            case ir.Array():
                return change(_rebuilt_array(here, visit))
            case _:
                return change(here)

    return visit(expr)


def _rebuilt_array(array: ir.Array, visit: Callable[[ir.Expr], ir.Expr]) -> ir.Array:
    contains = array.contains
    if contains is not None:
        contains = replace(contains, match=visit(contains.match), other=visit(contains.other))
    return replace(
        array,
        prefix=tuple(map(visit, array.prefix)),
        items=None if array.items is None else visit(array.items),
        unique=None if array.unique is None else tuple(map(visit, array.unique)),
        contains=contains,
    )


def components(refs: Mapping[str, frozenset[str]]) -> list[tuple[str, ...]]:
    """Strongly connected components, referred-to ones first (Tarjan's algorithm, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    on_stack: set[str] = set()
    stack: list[str] = []
    found: list[tuple[str, ...]] = []
    for root in refs:
        if root in index:
            continue
        work = [(root, iter(sorted(refs[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            here, targets = work[-1]
            target = next(targets, None)
            if target is not None:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(refs[target]))))
                elif target in on_stack:
                    low[here] = min(low[here], index[target])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[here])
            if low[here] == index[here]:
                cut = stack.index(here)
                found.append(tuple(stack[cut:]))
                on_stack.difference_update(stack[cut:])
                del stack[cut:]
    return found
