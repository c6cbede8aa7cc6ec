"""The meaning of the intermediate representation, spelt out: slow, without registers or tables, and plainly right.

Every test of the fast machine compares with this. A configuration is a stack of what is still to be read; reading a
byte rewrites the top in every possible way. Lengths are products of automata, counts and seen members are written
into the stack, and what can't be finished is not begun: a configuration exists only if it can be completed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.parted_keys import languages_of_parts
from ramet.constrained.regex import dfa as regular
from ramet.constrained.regex.dfa import Dfa
from ramet.constrained.regex.text import to_json_content


@dataclass(frozen=True)
class _LangAt:
    dfa: Dfa
    state: int


@dataclass(frozen=True)
class _ObjectAt:
    """Between two members: `position` is the first declared one still allowed (order fixed)."""

    body: ir.Object
    seen: frozenset[int]
    count: int
    position: int
    parts: frozenset[tuple[int, int]] = frozenset()
    """Of the free members, those that came: (number of the member, of the part)."""


@dataclass(frozen=True)
class _ArrayAt:
    body: ir.Array
    count: int
    used: frozenset[int]
    matched: int


_Thing = ir.Expr | _LangAt | _ObjectAt | _ArrayAt
_Stack = tuple[_Thing, ...]
Configurations = frozenset[_Stack]
"""What is still to be read, in every reading so far. Empty: dead."""


class Interpreter:
    """Runs one grammar."""

    def __init__(self, grammar: ir.Grammar) -> None:
        self.grammar = grammar
        self._productive_rules: frozenset[str] = frozenset()
        self._find_productive_rules()

    def start(self) -> Configurations:
        """Before the first byte."""
        stack: _Stack = (ir.Ref(self.grammar.start),)
        return frozenset([stack]) if self._productive(stack[0]) else frozenset()

    def step(self, configurations: Configurations, symbol: int | ir.Special) -> Configurations:
        """After one more byte or special token."""
        found: set[_Stack] = set()
        for stack in self._ready(configurations):
            found.update(_read(stack, symbol))
        return frozenset(found)

    def run(self, configurations: Configurations, data: bytes) -> Configurations:
        """After these bytes."""
        for byte in data:
            configurations = self.step(configurations, byte)
        return configurations

    def accepts(self, configurations: Configurations) -> bool:
        """Whether nothing more needs to be read."""
        return () in self._ready(configurations)

    def matches(self, data: bytes) -> bool:
        """Whether the whole of `data` is in the language."""
        return self.accepts(self.run(self.start(), data))

    def is_live(self, configurations: Configurations) -> bool:
        """Whether any continuation exists (or the end is here)."""
        return bool(self._ready(configurations))

    # Rewriting -------------------------------------------------------------------------------------------------------

    def _ready(self, configurations: Configurations) -> set[_Stack]:
        """All rewritings whose top reads a byte, and the empty stack."""
        seen: set[_Stack] = set()
        waiting = list(configurations)
        while waiting:
            stack = waiting.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if stack:
                waiting.extend(s for s in self._rewrite(stack[0], stack[1:]) if all(map(self._productive, s)))
        return {s for s in seen if not s or isinstance(s[0], _LangAt | ir.Special)}

    def _rewrite(self, top: _Thing, rest: _Stack) -> Iterator[_Stack]:
        match top:
            case ir.Literal():
                yield (_LangAt(_bytes_of(top.data), 0), *rest)
            case ir.Lang():
                yield (_LangAt(top.dfa, 0), *rest)
            case ir.String():
                yield (_LangAt(_string(top), 0), *rest)
            case _LangAt():
                if top.state in top.dfa.accepting:
                    yield rest
            case ir.Seq():
                yield (*top.items, *rest)
            case ir.Alt():
                yield from ((item, *rest) for item in top.items)
            case ir.Ref():
                yield (self.grammar.rules[top.rule], *rest)
            case ir.Tagged():
                yield (top.item, *rest)
            case ir.Repeat():
                yield from ((*more, *rest) for more in _repeated(top))
            case ir.Object():
                opening = ir.Seq((ir.Literal(b"{"), _space(top.spacing.after_open)))
                yield (opening, _ObjectAt(top, frozenset(), 0, 0), *rest)
            case ir.Array():
                opening = ir.Seq((ir.Literal(b"["), _space(top.spacing.after_open)))
                yield (opening, _ArrayAt(top, 0, frozenset(), 0), *rest)
            case _ObjectAt():
                yield from ((*more, *rest) for more in self._members(top))
            case _ArrayAt():
                yield from ((*more, *rest) for more in self._items(top))
            case ir.Special():
                pass

    # Objects ---------------------------------------------------------------------------------------------------------

    def _members(self, at: _ObjectAt) -> Iterator[_Stack]:
        if _may_close(at):
            close = ir.Literal(b"}")
            yield (_space(at.body.spacing.before_close), close) if at.count else (close,)
        for key, value, following in self._next_members(at):
            if self._can_finish(following):
                spaces = at.body.spacing
                comma = (_space(spaces.before_comma), ir.Literal(b","), _space(spaces.after_comma)) if at.count else ()
                colon = (_space(spaces.before_colon), ir.Literal(b":"), _space(spaces.after_colon))
                yield (*comma, key, *colon, value, following)

    def _next_members(self, at: _ObjectAt) -> Iterator[tuple[ir.Expr, ir.Expr, _ObjectAt]]:
        """(key, value, what follows) for each member that may come next, without looking ahead."""
        members = at.body.members
        for index, member in enumerate(members):
            fits = index >= at.position and not any(m.required for m in members[at.position : index])
            if index not in at.seen and (fits or at.body.order == "any") and self._productive(member.value):
                key = ir.Literal(json.dumps(member.name, ensure_ascii=False).encode())
                yield key, member.value, replace(at, seen=at.seen | {index}, count=at.count + 1, position=index + 1)
        if at.body.order == "any" or not any(m.required for m in members[at.position :]):
            for number, free in enumerate(at.body.free):
                whole = free.keys if free.keys is not None else regular.any_text()
                for index, keys in enumerate(languages_of_parts(whole, free.parts)):
                    if self._productive(free.value) and not keys.is_empty:
                        parts = at.parts | {(number, index)}
                        following = replace(at, count=at.count + 1, position=len(members), parts=parts)
                        yield ir.String(pattern=keys), free.value, following

    def _can_finish(self, at: _ObjectAt, budget: int | None = None) -> bool:
        """Whether some choice of further members (never more than `budget` are needed) leads to a legal `}`."""
        budget = len(at.body.members) + at.body.minimum if budget is None else budget
        if at.body.maximum is not None and at.count > at.body.maximum:
            return False
        if _may_close(at):
            return True
        return budget > 0 and any(self._can_finish(f, budget - 1) for _, _, f in self._next_members(at))

    # Arrays ----------------------------------------------------------------------------------------------------------

    def _items(self, at: _ArrayAt) -> Iterator[_Stack]:
        if _may_end(at):
            close = ir.Literal(b"]")
            yield (_space(at.body.spacing.before_close), close) if at.count else (close,)
        for item, following in self._next_items(at):
            if self._can_end(following):
                spaces = at.body.spacing
                comma = (_space(spaces.before_comma), ir.Literal(b","), _space(spaces.after_comma)) if at.count else ()
                yield (*comma, item, following)

    def _next_items(self, at: _ArrayAt) -> Iterator[tuple[ir.Expr, _ArrayAt]]:
        body, more = at.body, replace(at, count=at.count + 1)
        if at.count < len(body.prefix):
            choices = [(body.prefix[at.count], more)]
        elif body.unique is not None:
            choices = [(e, replace(more, used=at.used | {i})) for i, e in enumerate(body.unique) if i not in at.used]
        elif body.contains is not None:
            choices = [(body.contains.match, replace(more, matched=at.matched + 1)), (body.contains.other, more)]
        else:
            choices = [] if body.items is None else [(body.items, more)]
        yield from ((item, following) for item, following in choices if self._productive(item))

    def _can_end(self, at: _ArrayAt, budget: int | None = None) -> bool:
        contains = at.body.contains
        if budget is None:
            budget = at.body.minimum + (0 if contains is None else contains.minimum)
        if at.body.maximum is not None and at.count > at.body.maximum:
            return False
        if contains is not None and contains.maximum is not None and at.matched > contains.maximum:
            return False
        if _may_end(at):
            return True
        return budget > 0 and any(self._can_end(following, budget - 1) for _, following in self._next_items(at))

    # Productivity ----------------------------------------------------------------------------------------------------

    def _find_productive_rules(self) -> None:
        """Rules that derive some string: the least fixed point."""
        while True:
            found = frozenset(name for name, body in self.grammar.rules.items() if self._productive(body))
            if found == self._productive_rules:
                return
            self._productive_rules = found

    def _productive(self, thing: _Thing) -> bool:
        match thing:
            case ir.Lang():
                return not thing.dfa.is_empty
            case ir.String():
                return not _string(thing).is_empty
            case ir.Seq():
                return all(map(self._productive, thing.items))
            case ir.Alt():
                return any(map(self._productive, thing.items))
            case ir.Ref():
                return thing.rule in self._productive_rules
            case ir.Tagged():
                return self._productive(thing.item)
            case ir.Repeat():
                return self._repeat_is_productive(thing)
            case ir.Object():
                return self._can_finish(_ObjectAt(thing, frozenset(), 0, 0))
            case ir.Array():
                return self._can_end(_ArrayAt(thing, 0, frozenset(), 0))
            case _:
                return True

    def _repeat_is_productive(self, repeat: ir.Repeat) -> bool:
        if repeat.maximum is not None and repeat.maximum < repeat.minimum:
            return False
        separator = repeat.separator is None or repeat.minimum < 2 or self._productive(repeat.separator)
        return repeat.minimum == 0 or (self._productive(repeat.item) and separator)


def _may_close(at: _ObjectAt) -> bool:
    body = at.body
    return (
        body.minimum <= len(at.seen) + len(at.parts)
        and (body.maximum is None or at.count <= body.maximum)
        and all(index in at.seen for index, member in enumerate(body.members) if member.required)
        and all(any(t in at.seen for t in c.then) for c in body.clauses if all(p in at.seen for p in c.present))
    )


def _may_end(at: _ArrayAt) -> bool:
    body, contains = at.body, at.body.contains
    enough = contains is None or (
        contains.minimum <= at.matched and (contains.maximum is None or at.matched <= contains.maximum)
    )
    return enough and body.minimum <= at.count and (body.maximum is None or at.count <= body.maximum)


def _read(stack: _Stack, symbol: int | ir.Special) -> Iterator[_Stack]:
    if not stack:
        return
    top, rest = stack[0], stack[1:]
    if isinstance(top, ir.Special):
        if top == symbol:
            yield rest
    elif isinstance(top, _LangAt) and isinstance(symbol, int):
        state = top.dfa.step(top.state, symbol)
        if state >= 0:
            yield (_LangAt(top.dfa, state), *rest)


def _repeated(repeat: ir.Repeat) -> Iterator[_Stack]:
    if repeat.minimum == 0:
        yield ()
    if repeat.maximum != 0:
        least = max(0, repeat.minimum - 1)
        most = None if repeat.maximum is None else repeat.maximum - 1
        if repeat.separator is None:
            yield (repeat.item, ir.Repeat(repeat.item, least, most))
            return
        pair = ir.Seq((repeat.separator, repeat.item))
        yield (repeat.item, ir.Repeat(pair, least, most))


def _space(language: Dfa | None) -> ir.Expr:
    return ir.EMPTY if language is None else ir.Lang(language)


@cache
def _bytes_of(data: bytes) -> Dfa:
    return regular.from_texts([data])


@cache
def _string(string: ir.String) -> Dfa:
    """The whole JSON string, quotes too, as one byte automaton: a product with the length, escaped."""
    decoded = regular.any_text() if string.pattern is None else string.pattern
    if string.minimum or string.maximum is not None:
        decoded = regular.intersection(decoded, regular.length_between(string.minimum, string.maximum))
    content = to_json_content(decoded, all_escapes=string.escapes == "all").dfa
    if content.is_empty:
        return content
    first, last = len(content.rows), len(content.rows) + 1
    rows = [(*row, (0x22, 0x22, last)) if s in content.accepting else row for s, row in enumerate(content.rows)]
    rows = [tuple(sorted(row)) for row in rows]
    whole = Dfa((*rows, ((0x22, 0x22, 0),), ()), frozenset({last}), regular.MAX_BYTE)
    return _starting_at(whole, first)


def _starting_at(dfa: Dfa, start: int) -> Dfa:
    swap = {0: start, start: 0}
    rows = [tuple((low, high, swap.get(t, t)) for low, high, t in row) for row in dfa.rows]
    rows[0], rows[start] = rows[start], rows[0]
    return Dfa(tuple(rows), frozenset(swap.get(s, s) for s in dfa.accepting), dfa.limit)
