"""JSON objects and arrays as items: which member or item may come next, without ever running into a dead end.

A position says what matters for the rest: how many members there are (up to the greatest bound), which of them were
seen (only those that matter: all in free order, those that clauses name in declared order), and how far the declared
order is. Positions are made when the output comes there, so any order of twenty keys is no burden.
"""

import itertools
import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ramet.constrained.automaton.items import UNBOUNDED, Action, Bytes, Edges, Guarded, Item, Node
from ramet.constrained.automaton.parted_keys import Owner, PartedKey
from ramet.runtime.errors import GrammarRefused


@dataclass(frozen=True)
class Gaps:
    """The whitespace items of a container."""

    after_open: Item
    before_close: Item
    before_comma: Item
    after_comma: Item
    before_colon: Item
    after_colon: Item


class DeclaredKey(NamedTuple):
    """A member with a name."""

    key: Item
    value: Item
    required: bool


class FreeKey(NamedTuple):
    """Members with keys of a language."""

    key: Item
    value: Item
    parted: PartedKey | None = None
    """The key, told apart by a hash; None: all keys count as one."""

    @property
    def num_parts(self) -> int:
        """Keys that differ for certain."""
        return 1 if self.parted is None else self.parted.parts.bit_count()

    @property
    def width(self) -> int:
        """Bits that remember the parts."""
        return 1 if self.parted is None else self.parted.number


class At(NamedTuple):
    """Between two members."""

    seen: int
    """Bits of members."""
    num: int
    """Members, as far as the maximum cares."""
    position: int
    """First declared member that may still come (declared order)."""
    distinct: int = 0
    """Members that differ for certain, as far as the minimum cares."""
    parts: int = 0
    """Bits of the parts of free keys that came, until there are enough distinct ones."""


Clauses = tuple[tuple[int, int], ...]
"""(bits that must all be seen, bits of which one must then be seen too)."""

_MAX_SEARCH = 50_000


class JsonObject(Owner):
    """See `ir.Object`. Position: an `At`."""

    def __init__(
        self,
        declared: tuple[DeclaredKey, ...],
        free: tuple[FreeKey, ...],
        bounds: tuple[int, int],
        clauses: Clauses,
        gaps: Gaps,
        *,
        any_order: bool,
    ) -> None:
        self.declared = declared
        self.free = tuple(f for f in free if f.value.productive and f.key.productive)
        self.minimum, self.maximum = bounds
        self.clauses, self.gaps, self.any_order = clauses, gaps, any_order
        self._key = ("object", declared, self.free, bounds, clauses, gaps, any_order)
        self._num_parts = sum(f.num_parts for f in self.free)
        self._offsets = [0, *itertools.accumulate(f.width for f in self.free)]
        """First bit of each free member's parts."""
        self._able = sum(1 << i for i, member in enumerate(declared) if member.value.productive)
        self._required = sum(1 << i for i, member in enumerate(declared) if member.required)
        named = 0
        for present, then in clauses:
            named |= present | then
        self._remembered = (1 << len(declared)) - 1 if any_order else named
        self._named = named
        self._top = 1 if self.maximum >= UNBOUNDED else self.maximum + 1
        self._known: dict[At, bool] = {}
        self._open_parts: dict[tuple[At, int], int] = {}
        self._searched = 0
        self.productive = self.can_finish(At(0, 0, 0))

    @property
    def key(self) -> Hashable:
        return self._key

    def begin(self, following: Node) -> Node:
        space = following.space
        first = space.node(self, At(0, 0, 0), following)
        return space.unique(Bytes(b"{")).begin(self.gaps.after_open.begin(first))

    def edges(self, at: Node) -> Edges:
        here = at.position
        assert isinstance(here, At)
        space, silent = at.space, []
        if self._may_close(here):
            close = space.unique(Bytes(b"}")).begin(at.following)
            silent.append(self.gaps.before_close.begin(close) if here.num else close)
        members = [
            key.begin(self._behind_key(at, value, following))
            for key, value, following in self._next(here)
            if self.can_finish(following)
        ]
        members += self._parted(at, here)
        silent.extend(self._after_comma(at, member) if here.num else member for member in members)
        return Edges(silent=silent)

    def _behind_key(self, at: Node, value: Item, following: At) -> Node:
        gaps, space = self.gaps, at.space
        colon = space.unique(Bytes(b":")).begin(gaps.after_colon.begin(value.begin(at.at(following))))
        return gaps.before_colon.begin(colon)

    def _after_comma(self, at: Node, member: Node) -> Node:
        comma = at.space.unique(Bytes(b",")).begin(self.gaps.after_comma.begin(member))
        return self.gaps.before_comma.begin(comma)

    # What may come ---------------------------------------------------------------------------------------------------

    def _next(self, here: At) -> Iterator[tuple[Item, Item, At]]:
        for index, member in enumerate(self.declared):
            bit = 1 << index
            if self._able & bit and not here.seen & bit and (self.any_order or index >= here.position):
                yield member.key, member.value, self._after(here, bit, index + 1, is_new=True)
                if member.required and not self.any_order:
                    return
            elif member.required and not self.any_order and index >= here.position:
                return
        for number, free in enumerate(self.free):
            if here.distinct >= self.minimum or free.parted is None:
                yield free.key, free.value, self._after_free(here, number, 0)

    def _parted(self, at: Node, here: At) -> Iterator[Node]:
        """Keys that are told apart, where it matters."""
        comes_later = not self.any_order and self._missing(here)
        if here.distinct < self.minimum and not comes_later:
            for number, free in enumerate(self.free):
                if free.parted is not None and self.open_parts(at, number):
                    yield at.space.node(free.parted, (number, "open"), at)

    def open_parts(self, at: Node, free: int) -> int:
        """Bits of the parts after which the object can still be finished."""
        here, parted = at.position, self.free[free].parted
        assert isinstance(here, At)
        assert parted is not None
        if (here, free) not in self._open_parts:
            self._open_parts[here, free] = sum(
                1 << part for part in _bit_numbers(parted.parts) if self.can_finish(self._after_free(here, free, part))
            )
        return self._open_parts[here, free]

    def after_key(self, at: Node, free: int, part: int) -> Node:
        """The node behind a key of that part."""
        here = at.position
        assert isinstance(here, At)
        return self._behind_key(at, self.free[free].value, self._after_free(here, free, part))

    def _after_free(self, here: At, number: int, part: int) -> At:
        bit = 1 << self._offsets[number] + part
        after = self._after(here, 0, len(self.declared), is_new=not here.parts & bit)
        return after._replace(parts=after.parts | bit) if after.distinct < self.minimum else after

    def _after(self, here: At, bit: int, position: int, *, is_new: bool) -> At:
        seen = here.seen | (bit & self._remembered)
        distinct = min(here.distinct + is_new, self.minimum)
        parts = here.parts if distinct < self.minimum else 0
        return At(seen, min(here.num + 1, self._top), 0 if self.any_order else position, distinct, parts)

    def _missing(self, here: At) -> int:
        """Bits of required members that have not come."""
        if self.any_order:
            return self._required & ~here.seen
        return self._required >> here.position << here.position

    def _may_close(self, here: At) -> bool:
        return (
            here.num <= self.maximum
            and self.minimum <= here.distinct
            and not self._missing(here)
            and all(here.seen & then for present, then in self.clauses if here.seen & present == present)
        )

    # Dead ends -------------------------------------------------------------------------------------------------------

    def can_finish(self, here: At) -> bool:
        """Whether some further members lead to a legal end."""
        if here not in self._known:
            self._known[here] = self._search(here)
        return self._known[here]

    def _search(self, here: At) -> bool:
        """Add what is required; then what clauses demand, in every way; then what the minimum demands."""
        open_bits = self._able & ~here.seen
        if not self.any_order:
            open_bits = open_bits >> here.position << here.position
        missing = self._missing(here)
        if missing & ~open_bits:
            return False
        room, wanted = self.maximum - here.num, self.minimum - here.distinct
        parts = self._num_parts - here.parts.bit_count()
        more = missing.bit_count()
        return self._extend(here.seen | missing, room - more, wanted - more, parts, open_bits & ~missing, set())

    def _extend(self, seen: int, room: int, wanted: int, parts: int, open_bits: int, tried: set[int]) -> bool:
        """`room`: members that may still come; `wanted`: new ones that must; `parts`: of free keys, that did not."""
        if room < max(wanted, 0) or seen in tried:
            return False
        tried.add(seen)
        self._searched += 1
        if self._searched > _MAX_SEARCH:
            raise GrammarRefused(
                expected="dependencies between properties that can be searched",
                got=f"{len(self.clauses)} of them",
                at="#",
                hint="Use fewer dependentRequired and required alternatives in one object.",
                code="grammar_too_complex",
            )
        violated = next((c for c in self.clauses if seen & c[0] == c[0] and not seen & c[1]), None)
        if violated is not None:
            return any(
                self._extend(seen | bit, room - 1, wanted - 1, parts, open_bits & ~bit, tried)
                for bit in _bits(violated[1] & open_bits)
            )
        if wanted <= (open_bits & ~self._named).bit_count() + parts:
            return True
        return any(
            self._extend(seen | bit, room - 1, wanted - 1, parts, open_bits & ~bit, tried)
            for bit in _bits(open_bits & self._named)
        )


def _bit_numbers(mask: int) -> Iterator[int]:
    return (bit.bit_length() - 1 for bit in _bits(mask))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low
        mask ^= low


def json_key(name: str) -> bytes:
    """The canonical spelling of a declared key."""
    return json.dumps(name, ensure_ascii=False).encode()


class JsonArray(Item):
    """See `ir.Array`, without `unique` and `contains`. Position: the number of items, up to the end of the prefix.

    Bounds beyond the prefix make the item the body of a rule, whose counter is the number of commas.
    """

    def __init__(self, prefix: tuple[Item, ...], items: Item, bounds: tuple[int, int], gaps: Gaps) -> None:
        self.prefix, self.items, self.gaps = prefix, items, gaps
        able = next((i for i, item in enumerate(prefix) if not item.productive), len(prefix))
        longest = UNBOUNDED if able == len(prefix) and items.productive else able
        self.minimum, self.maximum = bounds[0], min(bounds[1], longest)
        self._last = max(len(prefix), 1)
        self.productive = self.minimum <= self.maximum
        self.is_counted = self.minimum > self._last or self._last < self.maximum < UNBOUNDED

    @property
    def key(self) -> Hashable:
        return ("array", self.prefix, self.items, self.minimum, self.maximum, self.gaps)

    def begin(self, following: Node) -> Node:
        space = following.space
        first = space.node(self, 0, following)
        return space.unique(Bytes(b"[")).begin(self.gaps.after_open.begin(first))

    def edges(self, at: Node) -> Edges:
        count = at.position
        assert isinstance(count, int)
        space, silent = at.space, []
        beyond = self.is_counted and count == self._last
        if (beyond or self.minimum <= count) and count <= self.maximum:
            close = space.unique(Bytes(b"]")).begin(at.following)
            close = self.gaps.before_close.begin(close) if count else close
            enough = Action(max(0, self.minimum - 1), UNBOUNDED, 0)
            silent.append(space.unique(Guarded(enough)).begin(close) if beyond else close)
        if count < self.maximum:
            item = self.prefix[count] if count < len(self.prefix) else self.items
            silent.append(self._one_more(at, count, item))
        return Edges(silent=silent)

    def _one_more(self, at: Node, count: int, item: Item) -> Node:
        gaps, space = self.gaps, at.space
        node = item.begin(at.at(min(count + 1, self._last)))
        if count == 0:
            return node
        node = gaps.before_comma.begin(space.unique(Bytes(b",")).begin(gaps.after_comma.begin(node)))
        if not self.is_counted:
            return node
        room = self.maximum - 2 if self.maximum < UNBOUNDED else UNBOUNDED
        return space.unique(Guarded(Action(0, room, 1))).begin(node)


class Picked(NamedTuple):
    """Between two items of a `JsonSelection`."""

    num: int
    matched: int
    used: int


class JsonSelection(Item):
    """An array whose next items depend on the former ones: `unique` over a finite list, or `contains`."""

    def __init__(
        self,
        unique: tuple[Item, ...],
        contains: tuple[Item, Item, int, int] | None,
        bounds: tuple[int, int],
        gaps: Gaps,
    ) -> None:
        self.unique, self.contains, self.bounds, self.gaps = unique, contains, bounds, gaps
        minimum, maximum = bounds
        self._top = max(minimum, 0 if maximum >= UNBOUNDED else maximum, 1)
        need, most = (contains[2], contains[3]) if contains else (0, UNBOUNDED)
        self._need, self._most = need, most
        self._top_matched = max(need, 0 if most >= UNBOUNDED else most)
        self.productive = self._can_finish(Picked(0, 0, 0))

    @property
    def key(self) -> Hashable:
        return ("selection", self.unique, self.contains, self.bounds, self.gaps)

    def begin(self, following: Node) -> Node:
        space = following.space
        first = space.node(self, Picked(0, 0, 0), following)
        return space.unique(Bytes(b"[")).begin(self.gaps.after_open.begin(first))

    def edges(self, at: Node) -> Edges:
        here = at.position
        assert isinstance(here, Picked)
        gaps, space, silent = self.gaps, at.space, []
        if self._may_close(here):
            close = space.unique(Bytes(b"]")).begin(at.following)
            silent.append(gaps.before_close.begin(close) if here.num else close)
        for item, following in self._next(here):
            if self._can_finish(following):
                node = item.begin(at.at(following))
                comma = space.unique(Bytes(b",")).begin(gaps.after_comma.begin(node))
                silent.append(gaps.before_comma.begin(comma) if here.num else node)
        return Edges(silent=silent)

    def _next(self, here: Picked) -> Iterator[tuple[Item, Picked]]:
        count = min(here.num + 1, self._top + 1)
        for index, item in enumerate(self.unique):
            if item.productive and not here.used >> index & 1:
                yield item, Picked(count, 0, here.used | 1 << index)
        if self.contains is not None:
            match, other, _, _ = self.contains
            if match.productive:
                yield match, Picked(count, min(here.matched + 1, self._top_matched + 1), 0)
            if other.productive:
                yield other, Picked(count, here.matched, 0)

    def _may_close(self, here: Picked) -> bool:
        return self.bounds[0] <= here.num <= self.bounds[1] and self._need <= here.matched <= self._most

    def _can_finish(self, here: Picked) -> bool:
        missing = max(0, self._need - here.matched)
        if self.bounds[0] > self.bounds[1]:
            return False
        if here.matched + missing > self._most or max(here.num, here.num + missing) > self.bounds[1]:
            return False
        if self.contains is None:
            left = sum(item.productive and not here.used >> i & 1 for i, item in enumerate(self.unique))
            return here.num + left >= self.bounds[0]
        match, other, _, _ = self.contains
        if missing and not match.productive:
            return False
        short = self.bounds[0] - here.num
        if short <= missing or other.productive:
            return True
        return match.productive and here.matched + short <= self._most
