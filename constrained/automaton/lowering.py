"""Intermediate representation -> items and rules.

Decides what is inlined and what is called. Called are: strings and other large regular languages (they are the same
in every grammar, so their states and masks are too), whatever needs the counter, what is tagged, and what recurs.
Also refuses left recursion and special tokens that the vocabulary lacks, and finds rules that derive nothing.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.containers import (
    DeclaredKey,
    FreeKey,
    Gaps,
    JsonArray,
    JsonObject,
    JsonSelection,
    json_key,
)
from ramet.constrained.automaton.items import (
    UNBOUNDED,
    Bytes,
    Call,
    Counted,
    Either,
    InOrder,
    Item,
    Loop,
    Regular,
    Rule,
    Space,
    SpecialToken,
)
from ramet.constrained.automaton.parted_keys import PartedKey
from ramet.constrained.automaton.references import components, refs_of, renamed
from ramet.constrained.automaton.strings import QuotedString, normalised_string, quoted_string
from ramet.constrained.regex import dfa as regular
from ramet.constrained.regex.dfa import Dfa, TooManyStates
from ramet.runtime.errors import GrammarRefused

_INLINE_STATES = 16
"""A finite regular language of at most so many states is written into its place."""


def lower(grammar: ir.Grammar, space: Space, special: Mapping[str, int]) -> Rule:
    """The start rule. `special` gives the ids of special tokens by text."""
    try:
        return _Lowering(grammar, space, special).run()
    except TooManyStates as error:
        raise GrammarRefused(
            expected="patterns and lengths of a bounded automaton",
            got=str(error),
            at="#",
            hint="A pattern together with a length is too large: loosen one of them.",
            code="grammar_too_complex",
        ) from None


class _Lowering:
    def __init__(self, grammar: ir.Grammar, space: Space, special: Mapping[str, int]) -> None:
        self.rules, self.start, self.space, self.special = grammar.rules, grammar.start, space, special
        self._facts = _Facts(grammar.rules, space)
        self._items: dict[str, Item] = {}
        self._bodies: dict[Item, Item] = {}
        """Calls that could as well be written out: they need no counter of their own."""

    def run(self) -> Rule:
        """Everything, from the start rule."""
        item = self.item(ir.Ref(self.start))
        if not item.productive:
            raise GrammarRefused(
                expected="a grammar that some output can match",
                got="contradictory constraints",
                at="#",
                hint="No output satisfies all of it.",
                code="grammar_unsatisfiable",
            )
        if isinstance(item, Call) and item.rule.tag is None and not item.nullable:
            return item.rule
        return self.space.rule(item)

    def item(self, expr: ir.Expr) -> Item:
        """The item of an expression."""
        return self.space.unique(self._made(expr))

    def _made(self, expr: ir.Expr) -> Item:
        match expr:
            case ir.Literal():
                return Bytes(expr.data)
            case ir.Lang():
                return self._lang(expr.dfa)
            case ir.String():
                return self._string(expr)
            case ir.Seq():
                return self._seq(expr)
            case ir.Alt():
                return self._alt(expr)
            case ir.Ref():
                return self._ref(expr.rule)
            case ir.Repeat():
                return self._repeat(expr)
            case ir.Object():
                return self._object(expr)
            case ir.Array():
                return self._array(expr)
            case ir.Tagged():
                body = self.item(expr.item)
                return Call(self.space.rule(body, expr.name), productive=body.productive)
            case ir.Special():
                return SpecialToken(self._special_id(expr.token))

    # Simple expressions ----------------------------------------------------------------------------------------------

    def _lang(self, dfa: Dfa) -> Item:
        if dfa.is_empty:
            return self.space.nothing
        body = self.space.unique(Regular(dfa))
        if len(dfa.rows) <= _INLINE_STATES and regular.is_finite(dfa):
            return body
        return Call(self.space.rule(body))

    def _string(self, string: ir.String) -> Item:
        body = _string_body(self.space, string)
        return Call(self.space.rule(body)) if body.productive else self.space.nothing

    def _seq(self, seq: ir.Seq) -> Item:
        items = [item for item in map(self.item, seq.items) if item is not self.space.empty]
        if any(not item.productive for item in items):
            return self.space.nothing
        return items[0] if len(items) == 1 else InOrder(tuple(items)) if items else self.space.empty

    def _alt(self, alt: ir.Alt) -> Item:
        items = [self._opened(item) for item in map(self.item, alt.items) if item.productive]
        distinct = tuple(dict.fromkeys(items))
        if not distinct:
            return self.space.nothing
        return distinct[0] if len(distinct) == 1 else Either(distinct)

    def _special_id(self, token: str | int) -> int:
        if isinstance(token, int):
            return token
        if token not in self.special:
            raise GrammarRefused(
                expected="a special token of this model",
                got=token,
                at="$",
                hint=f"It has {', '.join(sorted(self.special)[:12]) or 'none'}.",
            )
        return self.special[token]

    # Repetition ------------------------------------------------------------------------------------------------------

    def _repeat(self, repeat: ir.Repeat) -> Item:
        item, space = self.item(repeat.item), self.space
        separator = space.empty if repeat.separator is None else self.item(repeat.separator)
        both_empty = item.nullable and separator.nullable
        minimum, maximum = (0 if both_empty else repeat.minimum), repeat.maximum
        if maximum is not None and maximum < repeat.minimum:
            return space.nothing
        if not item.productive or maximum == 0:
            return space.empty if minimum == 0 else space.nothing
        if maximum == 1 or not separator.productive:
            return space.nothing if minimum > 1 else self._maybe(item, optional=minimum == 0)
        if both_empty and repeat.separator is not None:
            pair = ir.Seq((repeat.separator, repeat.item))
            return self.item(ir.Seq((repeat.item, ir.Repeat(pair, 0, None if maximum is None else maximum - 1))))
        if maximum is None and minimum <= 1:
            return self._maybe(space.unique(Loop(item, separator)), optional=minimum == 0)
        item = self._without_empty(item) if both_empty else item
        body = space.unique(Counted(item, separator, minimum, maximum))
        return Call(space.rule(body))

    def _maybe(self, item: Item, *, optional: bool) -> Item:
        return Either((self.space.empty, item)) if optional and not item.nullable else item

    def _without_empty(self, item: Item) -> Item:
        """The item, minus the empty string."""
        return self.space.unique(Call(self.space.rule(item), may_skip=False))

    # Containers ------------------------------------------------------------------------------------------------------

    def _gaps(self, spacing: ir.Spacing) -> Gaps:
        def gap(language: Dfa | None) -> Item:
            return self.space.empty if language is None else self.space.unique(self._lang(language))

        return Gaps(
            gap(spacing.after_open),
            gap(spacing.before_close),
            gap(spacing.before_comma),
            gap(spacing.after_comma),
            gap(spacing.before_colon),
            gap(spacing.after_colon),
        )

    def _object(self, body: ir.Object) -> Item:
        declared = tuple(
            DeclaredKey(self.space.unique(Bytes(json_key(m.name))), self.item(m.value), m.required)
            for m in body.members
        )
        free = tuple(
            FreeKey(self._key(f.keys), self.item(f.value), self._parted_key(f) if f.parts > 1 else None)
            for f in body.free
        )
        clauses = tuple((_bit_set(c.present), _bit_set(c.then)) for c in body.clauses)
        bounds = (body.minimum, UNBOUNDED if body.maximum is None else body.maximum)
        made = JsonObject(declared, free, bounds, clauses, self._gaps(body.spacing), any_order=body.order == "any")
        return made if made.productive else self.space.nothing

    def _key(self, keys: Dfa | None) -> Item:
        """Free keys stand in their place: the automaton must tell them from the declared names."""
        body = self.space.unique(quoted_string(ir.String(pattern=keys)))  # no counter: the object's frame has its own
        return body if body.productive else self.space.nothing

    def _parted_key(self, free: ir.FreeMember) -> PartedKey:
        found = self.space.unique(PartedKey(free.keys, free.parts))
        assert isinstance(found, PartedKey), "equal items are of one kind"
        return found

    def _array(self, body: ir.Array) -> Item:
        bounds = (body.minimum, UNBOUNDED if body.maximum is None else body.maximum)
        gaps = self._gaps(body.spacing)
        if body.unique is not None or body.contains is not None:
            return self._selection(body, bounds, gaps)
        items = self.space.nothing if body.items is None else self.item(body.items)
        array = self.space.unique(JsonArray(tuple(map(self.item, body.prefix)), items, bounds, gaps))
        if not array.productive:
            return self.space.nothing
        return Call(self.space.rule(array)) if isinstance(array, JsonArray) and array.is_counted else array

    def _selection(self, body: ir.Array, bounds: tuple[int, int], gaps: Gaps) -> Item:
        assert not body.prefix, "unique and contains go without prefix items"
        contains = body.contains
        made = JsonSelection(
            tuple(map(self.item, body.unique or ())),
            None
            if contains is None
            else (
                self.item(contains.match),
                self.item(contains.other),
                contains.minimum,
                UNBOUNDED if contains.maximum is None else contains.maximum,
            ),
            bounds,
            gaps,
        )
        return made if made.productive else self.space.nothing

    # Rules -----------------------------------------------------------------------------------------------------------

    def _ref(self, name: str) -> Item:
        if name not in self._items:
            component = self._facts.component_of[name]
            if self._facts.recurs(name):
                self._define_component(name, component)
            else:
                self._items[name] = self._plain_call(name)
        return self._items[name]

    def _plain_call(self, name: str) -> Item:
        body = self.item(self.rules[name])
        small = isinstance(body, Bytes | Call | Regular | SpecialToken) or not body.productive
        if small:
            return body
        call = self.space.unique(Call(self.space.rule(body)))
        if not (isinstance(body, QuotedString | Counted) or (isinstance(body, JsonArray) and body.is_counted)):
            self._bodies[call] = body
        return call

    def _opened(self, item: Item) -> Item:
        """A branch of a union in place of its call, so that branches which begin alike are followed as one."""
        return self._bodies.get(item, item)

    def _define_component(self, entry: str, component: tuple[str, ...]) -> None:
        """Rules that recur together. Equal ones, whatever their names, are the same rules in every grammar."""
        names = self._in_order_of_use(entry, frozenset(component))
        key = self._component_key(names)
        fresh: list[tuple[str, Rule]] = []
        for number, name in enumerate(names):
            rule, is_new = self.space.recursive_rule((key, number))
            rule.nullable = name in self._facts.nullable
            productive = name in self._facts.productive
            self._items[name] = self.space.unique(Call(rule)) if productive else self.space.nothing
            if is_new and productive:
                fresh.append((name, rule))
        for name, rule in fresh:
            rule.define(self.item(self.rules[name]), nullable=rule.nullable)

    def _in_order_of_use(self, entry: str, component: frozenset[str]) -> list[str]:
        order = [entry]
        for name in order:  # grows while we walk it
            order.extend(n for n in dict.fromkeys(refs_of(self.rules[name])) if n in component and n not in order)
        return order

    def _component_key(self, names: list[str]) -> Hashable:
        numbers = {name: str(number) for number, name in enumerate(names)}

        def canonical(name: str) -> str:
            return numbers[name] if name in numbers else f"@{id(self._ref(name))}"  # items live as long as the space

        return tuple(renamed(self.rules[name], canonical) for name in names)


def _string_body(space: Space, string: ir.String) -> Item:
    if string not in space.lowered:
        space.lowered[string] = space.unique(quoted_string(normalised_string(string)))
    return space.lowered[string]


def _bit_set(indices: tuple[int, ...]) -> int:
    return sum(1 << index for index in set(indices))


class _Facts:
    """What is true of the rules: which derive something, and which the empty string."""

    def __init__(self, rules: Mapping[str, ir.Expr], space: Space) -> None:
        self.rules, self._space = rules, space
        self._refs = {name: frozenset(refs_of(body)) for name, body in rules.items()}
        for name, refs in self._refs.items():
            for unknown in sorted(refs - rules.keys()):
                raise GrammarRefused(expected="a rule of the grammar", got=unknown, at=name)
        self._components = components(self._refs)
        self.component_of = {name: component for component in self._components for name in component}
        self.nullable = self._fixed_point(self._derives_empty)
        self.productive = self._fixed_point(self._derives)
        self._refuse_left_recursion()

    def recurs(self, name: str) -> bool:
        """Whether the rule reaches itself."""
        return len(self.component_of[name]) > 1 or name in self._refs[name]

    def _fixed_point(self, holds: Callable[[ir.Expr, set[str]], bool]) -> set[str]:
        found: set[str] = set()
        for component in self._components:
            size = -1
            while size != len(found):
                size = len(found)
                found.update(name for name in component if name not in found and holds(self.rules[name], found))
        return found

    def _derives_empty(self, expr: ir.Expr, rules: set[str]) -> bool:
        match expr:
            case ir.Literal():
                return not expr.data
            case ir.Lang():
                return 0 in expr.dfa.accepting
            case ir.Seq():
                return all(self._derives_empty(item, rules) for item in expr.items)
            case ir.Alt():
                return any(self._derives_empty(item, rules) for item in expr.items)
            case ir.Ref():
                return expr.rule in rules
            case ir.Tagged():
                return self._derives_empty(expr.item, rules)
            case ir.Repeat():
                alone = expr.minimum < 2 or expr.separator is None or self._derives_empty(expr.separator, rules)
                return expr.minimum == 0 or (alone and self._derives_empty(expr.item, rules))
            case _:
                return False

    def _derives(self, expr: ir.Expr, rules: set[str]) -> bool:
        """Exact for all but containers, where it may say yes too early; those are judged again when lowered."""
        match expr:
            case ir.Lang():
                return not expr.dfa.is_empty
            case ir.String():
                return _string_body(self._space, expr).productive
            case ir.Seq():
                return all(self._derives(item, rules) for item in expr.items)
            case ir.Alt():
                return any(self._derives(item, rules) for item in expr.items)
            case ir.Ref():
                return expr.rule in rules
            case ir.Tagged():
                return self._derives(expr.item, rules)
            case ir.Repeat():
                parts = [expr.item, *([expr.separator] if expr.separator is not None and expr.minimum > 1 else [])]
                possible = expr.maximum is None or expr.minimum <= expr.maximum
                return possible and (expr.minimum == 0 or all(self._derives(part, rules) for part in parts))
            case ir.Object():
                return self._object_derives(expr, rules)
            case ir.Array():
                return self._array_derives(expr, rules)
            case _:
                return True

    def _object_derives(self, body: ir.Object, rules: set[str]) -> bool:
        def stands(value: ir.Expr) -> ir.Expr:
            return ir.EMPTY if self._derives(value, rules) else ir.NOTHING

        members = tuple(ir.Member(m.name, stands(m.value), m.required) for m in body.members)
        free = tuple(
            ir.FreeMember(f.keys if f.parts > 1 else None, stands(f.value), f.parts)
            for f in body.free
            if f.keys is None or not f.keys.is_empty
        )
        shape = ir.Object(members, free, body.minimum, body.maximum, body.clauses, body.order)
        return self._shape_is_productive(shape)

    def _array_derives(self, body: ir.Array, rules: set[str]) -> bool:
        def stands(value: ir.Expr) -> ir.Expr:
            return ir.EMPTY if self._derives(value, rules) else ir.NOTHING

        contains = body.contains
        if contains is not None:
            contains = ir.Contains(stands(contains.match), stands(contains.other), contains.minimum, contains.maximum)
        unique = None if body.unique is None else tuple(map(stands, body.unique))
        items = None if body.items is None else stands(body.items)
        shape = ir.Array(tuple(map(stands, body.prefix)), items, body.minimum, body.maximum, unique, contains)
        return self._shape_is_productive(shape)

    def _shape_is_productive(self, shape: ir.Object | ir.Array) -> bool:
        """Judged by the items themselves, once what they hold is reduced to something or nothing."""
        return _Lowering(ir.Grammar({}, ""), self._space, {}).item(shape).productive

    # Recursion -------------------------------------------------------------------------------------------------------

    def _refuse_left_recursion(self) -> None:
        firsts = {name: frozenset(self._firsts(body)) for name, body in self.rules.items()}
        for component in components(firsts):
            name = component[0]
            if len(component) > 1 or name in firsts[name]:
                raise GrammarRefused(
                    expected="a rule that reads something before it refers to itself",
                    got=name,
                    at=name,
                    hint="A left-recursive or self-referring rule describes no text to begin with.",
                    code="grammar_left_recursive",
                )

    def _firsts(self, expr: ir.Expr) -> Iterator[str]:
        """Rules that an expression may call before it has read anything."""
        match expr:
            case ir.Ref():
                yield expr.rule
            case ir.Tagged():
                yield from self._firsts(expr.item)
            case ir.Alt():
                for item in expr.items:
                    yield from self._firsts(item)
            case ir.Seq():
                for item in expr.items:
                    yield from self._firsts(item)
                    if not self._derives_empty(item, self.nullable):
                        break
            case ir.Repeat():
                yield from self._firsts(expr.item)
                if expr.separator is not None and self._derives_empty(expr.item, self.nullable):
                    yield from self._firsts(expr.separator)
            case _:
                pass
