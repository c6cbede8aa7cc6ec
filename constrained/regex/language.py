"""Pattern -> automaton. Thompson's construction, then subsets; never a backtracking engine.

`language("^a+$")` is the set of texts in which the pattern is found, as JSON Schema reads it; `whole=True` asks that
it match from end to end. Assertions are exact: a subset remembers whether the last code point was a word character,
and a path that has passed `$` or `\\b` carries what may come next. Look-around is turned into intersection and
difference where it stands beside the whole rest of a pattern, and is refused elsewhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ramet.constrained.regex.dfa import (
    MAX_STATES,
    Dfa,
    TooManyStates,
    complement,
    intersection,
    joined,
    minimised,
    trimmed,
)
from ramet.constrained.regex.syntax import (
    ALL,
    WORD,
    Alternate,
    Assert,
    Chars,
    Concat,
    Look,
    Loop,
    Node,
    PatternError,
    Ranges,
    intersected,
    inverted,
    parse,
)
from ramet.runtime.errors import GrammarRefused

_MAX_NODES = 200_000
_MAX_UNROLLED = 8
"""Greatest repetition around a look-around that is written out."""


def language(
    pattern: str, *, whole: bool = False, flags: str = "", at: str = "$.regex", max_states: int = MAX_STATES
) -> Dfa:
    """The code-point language of a pattern. Raises GrammarRefused, pointing `at`, where it can't be had.

    whole   the pattern must match the entire text (`Regex` specs, terminals); else anywhere in it, unless anchored
    flags   letters out of i, s, x
    """
    try:
        tree = parse(pattern, flags=flags)
        return tree_language(tree if whole else Concat((_ANYTHING, tree, _ANYTHING)), max_states=max_states)
    except PatternError as error:
        raise GrammarRefused(
            expected="a regular expression of the ECMA-262 / Python common subset",
            got=pattern,
            at=at,
            hint=f"{str(error)[:1].upper()}{str(error)[1:]}.",
            code="invalid_pattern",
        ) from None
    except TooManyStates as error:
        raise GrammarRefused(
            expected="a pattern of a bounded automaton",
            got=pattern,
            at=at,
            hint=f"Its automaton has {error}: use smaller repetitions, or minLength and maxLength.",
            code="grammar_too_complex",
        ) from None


_ANYTHING = Loop(Chars(ALL), 0, None)


def tree_language(tree: Node, *, max_states: int = MAX_STATES) -> Dfa:
    """The texts that the tree matches from end to end."""
    return _determinise(_without_looks(tree, max_states), max_states)


# Look-around ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Embedded:
    """A finished automaton as a node of a tree."""

    dfa: Dfa


_Tree = Node | _Embedded


def _without_looks(tree: Node, max_states: int) -> _Tree:
    if not _has_look(tree):
        return tree
    branches = [_concat_without_looks(list(items), max_states) for items in _flattened(tree)]
    return branches[0] if len(branches) == 1 else Alternate(tuple(branches))  # type: ignore[arg-type]


def _flattened(tree: Node) -> list[tuple[Node, ...]]:
    """The alternatives of a tree as sequences whose look-arounds all stand at the top."""
    if isinstance(tree, Alternate):
        return [flat for item in tree.items for flat in _flattened(item)]
    if isinstance(tree, Loop) and tree.maximum is not None and tree.maximum <= _MAX_UNROLLED and _has_look(tree):
        counts = range(tree.minimum, tree.maximum + 1)
        return [flat for count in counts for flat in _flattened(Concat((tree.item,) * count))]
    if not isinstance(tree, Concat):
        return [(tree,)]
    found: list[tuple[Node, ...]] = [()]
    for item in tree.items:
        parts = _flattened(item) if _has_look(item) and not isinstance(item, Look) else [(item,)]
        found = [(*before, *part) for before in found for part in parts]
        if len(found) > 64:
            raise PatternError("too many alternatives around a look-around", 0)
    return found


def _concat_without_looks(items: list[Node], max_states: int) -> _Tree:
    guarded = _guarded_loop(items, max_states)
    if guarded is not None:
        return guarded
    at = next((i for i, item in enumerate(items) if _has_look(item)), None)
    if at is None:
        return Concat(tuple(items))
    look = items[at]
    if not isinstance(look, Look):
        raise PatternError("a look-around inside a repetition is not supported", 0)
    if look.behind:
        return _behind(items[:at], look, items[at + 1 :], max_states)
    after = at + 1
    while after < len(items) and isinstance(items[after], Assert):
        after += 1
    before, rest = [*items[:at], *items[at + 1 : after]], items[after:]  # zero-width neighbours change places
    _check_context(before, [look.item, *rest])
    remaining = _determinise(_concat_without_looks(rest, max_states), max_states)
    condition = tree_language(Concat((look.item, _ANYTHING)), max_states=max_states)
    kept = intersection(remaining, complement(condition) if look.negative else condition, max_states=max_states)
    return Concat((*before, _Embedded(kept)))  # type: ignore[arg-type]


def _behind(before: list[Node], look: Look, rest: list[Node], max_states: int) -> _Tree:
    if any(_has_assert(node, ("end", "word", "not_word")) for node in (*before, look.item)):
        raise PatternError("an anchor or word boundary before a look-behind is not supported", 0)
    read = _determinise(Concat(tuple(before)), max_states)
    condition = tree_language(Concat((_ANYTHING, look.item)), max_states=max_states)
    kept = intersection(read, complement(condition) if look.negative else condition, max_states=max_states)
    return Concat((_Embedded(kept), _concat_without_looks(rest, max_states)))  # type: ignore[arg-type]


def _guarded_loop(items: list[Node], max_states: int) -> _Tree | None:
    """`((?!X)C)*` up to the end of the text: no place of it may begin an X."""
    for at, item in enumerate(items):
        if not (isinstance(item, Loop) and isinstance(item.item, Concat) and len(item.item.items) == 2):
            continue
        look, one = item.item.items
        ends = len(items) > at + 1 and items[at + 1] == Assert("end")
        if not (isinstance(look, Look) and look.negative and not look.behind and isinstance(one, Chars) and ends):
            continue
        _check_context([], [look.item])
        loop = tree_language(Loop(one, item.minimum, item.maximum), max_states=max_states)
        found = tree_language(Concat((_ANYTHING, look.item, Loop(Chars(ALL), 0, None))), max_states=max_states)
        if _determinise(look.item, max_states).matches(""):
            raise PatternError("a look-ahead that matches the empty text in a repetition is not supported", 0)
        kept = intersection(loop, complement(found), max_states=max_states)
        rest = [node for node in items[at + 1 :] if node not in (Assert("end"), _ANYTHING)]
        if rest or any(_has_look(node) for node in items[:at]):
            return None
        return Concat((*items[:at], _Embedded(kept)))  # type: ignore[arg-type]
    return None


def _check_context(before: list[Node], after: list[Node]) -> None:
    """What stands after a look-around is compiled on its own, so it must not look back."""
    at_start = (
        bool(before) and all(node in (Assert("start"), _ANYTHING) for node in before) and Assert("start") in before
    )
    if not at_start and any(_has_assert(node, ("start", "word", "not_word")) for node in after):
        raise PatternError("an anchor or word boundary after a look-around is not supported", 0)


def _has_look(tree: Node) -> bool:
    return isinstance(tree, Look) or any(map(_has_look, _children(tree)))


def _has_assert(tree: Node, kinds: tuple[str, ...]) -> bool:
    return (isinstance(tree, Assert) and tree.kind in kinds) or any(_has_assert(c, kinds) for c in _children(tree))


def _children(tree: Node) -> tuple[Node, ...]:
    if isinstance(tree, Concat | Alternate):
        return tree.items
    return (tree.item,) if isinstance(tree, Loop | Look) else ()


# Thompson ------------------------------------------------------------------------------------------------------------

_END, _WORD_NEXT, _OTHER_NEXT = 1, 2, 4
_FREE = _END | _WORD_NEXT | _OTHER_NEXT
"""What may come next on a path: any mixture of the end, a word character, another character."""
_OTHER: Ranges = inverted(WORD)


class _Nfa:
    """States with edges over ranges, silent edges, and silent edges that assert."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int, int]]] = []
        self.silent: list[list[int]] = []
        self.asserts: list[list[tuple[str, int]]] = []

    def state(self) -> int:
        if len(self.edges) >= _MAX_NODES:
            raise TooManyStates(_MAX_NODES)
        self.edges.append([])
        self.silent.append([])
        self.asserts.append([])
        return len(self.edges) - 1

    def add(self, tree: _Tree, start: int) -> int:
        """Build `tree` behind `start`; gives the state in which it ends."""
        match tree:
            case Chars():
                end = self.state()
                self.edges[start].extend((low, high, end) for low, high in tree.ranges)
                return end
            case Concat():
                for item in tree.items:
                    start = self.add(item, start)
                return start
            case Alternate():
                end = self.state()
                for item in tree.items:
                    branch = self.state()
                    self.silent[start].append(branch)
                    self.silent[self.add(item, branch)].append(end)
                return end
            case Loop():
                return self._loop(tree, start)
            case Assert():
                end = self.state()
                self.asserts[start].append((tree.kind, end))
                return end
            case _Embedded():
                return self._embedded(tree.dfa, start)
            case Look():
                raise PatternError("a look-around is not supported here", 0)

    def _loop(self, loop: Loop, start: int) -> int:
        for _ in range(loop.minimum):
            start = self.add(loop.item, start)
        end = self.state()
        self.silent[start].append(end)
        if loop.maximum is None:
            around = self.state()
            self.silent[start].append(around)
            last = self.add(loop.item, around)
            self.silent[last].extend((around, end))
        else:
            for _ in range(loop.maximum - loop.minimum):
                start = self.add(loop.item, start)
                self.silent[start].append(end)
        return end

    def _embedded(self, dfa: Dfa, start: int) -> int:
        states = [self.state() for _ in dfa.rows]
        end = self.state()
        self.silent[start].append(states[0])
        for state, row in zip(states, dfa.rows, strict=True):
            self.edges[state].extend((low, high, states[t]) for low, high, t in row)
        for accepting in dfa.accepting:
            self.silent[states[accepting]].append(end)
        return end


# Subsets -------------------------------------------------------------------------------------------------------------

_Item = tuple[int, int]
"""A state of the NFA and what may come next."""
_Subset = tuple[bool, frozenset[_Item]]
"""Whether the last code point was a word character, and the items."""


def _determinise(tree: _Tree, max_states: int) -> Dfa:
    nfa = _Nfa()
    start = nfa.state()
    final = nfa.add(tree, start)
    has_words = any(kind in ("word", "not_word") for row in nfa.asserts for kind, _ in row)
    first: _Subset = (False, _closure(nfa, [start], at_start=True, after_word=False))
    ids, order = {first: 0}, [first]
    rows, accepting = [], set()
    for number, (_, items) in enumerate(order):  # grows while we walk it
        if any(state == final and following & _END for state, following in items):
            accepting.add(number)
        row = []
        for low, high, targets in _moves(nfa, items, has_words):
            after_word = has_words and any(a <= low <= b for a, b in WORD)
            subset = (after_word, _closure(nfa, targets, at_start=False, after_word=after_word))
            if subset not in ids:
                if len(order) >= max_states:
                    raise TooManyStates(max_states)
                ids[subset] = len(order)
                order.append(subset)
            row.append((low, high, ids[subset]))
        rows.append(joined(row))
    return minimised(trimmed(Dfa(tuple(rows), frozenset(accepting))))


def _closure(nfa: _Nfa, states: Iterable[int], *, at_start: bool, after_word: bool) -> frozenset[_Item]:
    stack: list[_Item] = [(state, _FREE) for state in states]
    seen = set(stack)
    while stack:
        state, following = stack.pop()
        reached = [(target, following) for target in nfa.silent[state]]
        for kind, target in nfa.asserts[state]:
            left = _allowed(kind, following, at_start, after_word)
            if left:
                reached.append((target, left))
        for item in reached:
            if item not in seen:
                seen.add(item)
                stack.append(item)
    return frozenset(seen)


def _allowed(kind: str, following: int, at_start: bool, after_word: bool) -> int:
    """What may come next once the assertion holds; 0: it can't hold."""
    if kind == "start":
        return following if at_start else 0
    if kind == "end":
        return following & _END
    boundary = (_END | _OTHER_NEXT) if after_word else _WORD_NEXT
    return following & (boundary if kind == "word" else _FREE ^ boundary)


def _moves(nfa: _Nfa, items: frozenset[_Item], has_words: bool) -> Iterable[tuple[int, int, list[int]]]:
    """Disjoint ranges in order, each with the states it leads to."""
    edges: list[tuple[int, int, int]] = []
    for state, following in items:
        if following == _FREE:
            edges.extend(nfa.edges[state])
        elif following & ~_END:
            part = WORD if not following & _OTHER_NEXT else _OTHER
            for low, high, target in nfa.edges[state]:
                edges.extend((p, q, target) for p, q in intersected(((low, high),), part))
    cuts = {c for low, high, _ in edges for c in (low, high + 1)}
    if has_words and edges:
        cuts |= {c for low, high in WORD for c in (low, high + 1)}
    return _swept(sorted(cuts), edges)


def _swept(cuts: list[int], edges: list[tuple[int, int, int]]) -> Iterable[tuple[int, int, list[int]]]:
    edges.sort()
    active: list[tuple[int, int]] = []
    position = 0
    for index, low in enumerate(cuts[:-1]):
        while position < len(edges) and edges[position][0] <= low:
            active.append((edges[position][1], edges[position][2]))
            position += 1
        active = [(high, target) for high, target in active if high >= low]
        if active:
            yield low, cuts[index + 1] - 1, sorted({target for _, target in active})
