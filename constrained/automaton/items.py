"""Lowered expressions, and what may be read next from any place inside one.

An `Item` is an expression with its Refs resolved; equal items are one object. A `Node` is a place: an item, a position
in it, and the node that follows. Nodes are made when they are first needed, so an object of a hundred optional keys
costs nothing until the output comes there. `Edges` says what a node reads; the machine makes states of sets of nodes.

A rule has one register, a counter, which `Action`s compare and increase. What needs it (a bounded repetition, a
length) is a rule of its own; calls save the caller's counter and begin with zero.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ramet.constrained.regex.dfa import Dfa

UNBOUNDED = 1 << 30
"""Stands for "no upper limit" in registers."""


class Action(NamedTuple):
    """Allowed if low <= counter <= high; then the counter grows by `add`."""

    low: int = 0
    high: int = UNBOUNDED
    add: int = 0

    def then(self, later: "Action") -> "Action":
        """Both, in this order, as one."""
        bound = UNBOUNDED if later.high >= UNBOUNDED else later.high - self.add
        return Action(max(self.low, later.low - self.add), min(self.high, bound), self.add + later.add)


FREE = Action()


@dataclass(slots=True)
class Edges:
    """What a node may do."""

    reads: list[tuple[int, int, "Node", Action]] = field(default_factory=list)
    """Bytes low..high, then go on at the node."""
    silent: list["Node"] = field(default_factory=list)
    calls: list[tuple["Rule", "Node", Action]] = field(default_factory=list)
    specials: list[tuple[int, "Node", Action]] = field(default_factory=list)
    """Token id, then go on."""
    accepts: list[Action] = field(default_factory=list)
    """The rule may end here."""


class Node:
    """A place in an item. Made by `Space.node` only; equal places are one object."""

    __slots__ = ("_closure", "_edges", "item", "next", "position", "space", "state")

    def __init__(self, space: "Space", item: "Item", position: Hashable, following: "Node | None") -> None:
        self.space, self.item, self.position, self.next = space, item, position, following
        self._edges: Edges | None = None
        self._closure: frozenset[Node] | None = None
        self.state: int | None = None
        """Number of the state that is this node's closure (-1: nothing), once the machine made it."""

    @property
    def edges(self) -> Edges:
        """Computed once."""
        if self._edges is None:
            self._edges = self.item.edges(self)
        return self._edges

    @property
    def following(self) -> "Node":
        """What comes after the item."""
        assert self.next is not None, "only the end of a rule has nothing after it"
        return self.next

    def at(self, position: Hashable) -> "Node":
        """Another place in the same item."""
        return self.space.node(self.item, position, self.next)

    @property
    def closure(self) -> frozenset["Node"]:
        """Nodes that read, call or accept, reachable from here in silence."""
        if self._closure is None:
            self._closure = frozenset(_close(self))
        return self._closure


def _close(node: Node) -> Iterator[Node]:
    seen, stack = {node}, [node]
    while stack:
        here = stack.pop()
        edges = here.edges
        if edges.reads or edges.calls or edges.specials or edges.accepts:
            yield here
        for target in edges.silent:
            if target not in seen:
                seen.add(target)
                stack.append(target)


class Space:
    """Keeps items, nodes and rules unique."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Item, Hashable, Node | None], Node] = {}
        self._items: dict[Hashable, Item] = {}
        self._rules: dict[Hashable, Rule] = {}
        self.lowered: dict[Hashable, Item] = {}
        """What costs much to lower, by its expression, for all grammars."""
        self.end = self.node(End(), None, None)
        self.nothing = self.unique(Nothing())
        self.empty = self.unique(Bytes(b""))

    def node(self, item: "Item", position: Hashable, following: Node | None) -> Node:
        """The node of this place."""
        key = (item, position, following)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes.setdefault(key, Node(self, item, position, following))  # atomic: two threads, one node
        return found

    def unique(self, item: "Item") -> "Item":
        """The one item equal to this."""
        return self._items.setdefault(item.key, item)

    def rule(self, body: "Item", tag: str | None = None) -> "Rule":
        """The rule with this body; rules of recursive grammars are made with `Rule` and kept by the lowering."""
        found = self._rules.get((body, tag))
        if found is None:
            made = Rule(self, tag)
            made.define(body, nullable=body.nullable)
            found = self._rules.setdefault((body, tag), made)
        return found

    def recursive_rule(self, key: Hashable) -> "tuple[Rule, bool]":
        """The rule of this key, and whether it is new (then the caller defines it)."""
        found = self._rules.get(key)
        if found is not None:
            return found, False
        self._rules[key] = rule = Rule(self, None)
        return rule, True

    @property
    def num_nodes(self) -> int:
        return len(self._nodes)


class Rule:
    """A body that is called: its frame has its own counter and, if tagged, reports where it begins and ends."""

    __slots__ = ("body", "end", "nullable", "space", "start_state", "tag")

    def __init__(self, space: Space, tag: str | None) -> None:
        self.space, self.tag = space, tag
        self.end = space.end if tag is None else space.node(End(tag), None, None)
        self.body: Item | None = None
        self.nullable = False
        self.start_state = -1
        """Number of the state in which it begins, once the machine made it."""

    def define(self, body: "Item", *, nullable: bool) -> None:
        """Give the body; a recursive rule exists before its body does."""
        self.body, self.nullable = body, nullable

    @property
    def start(self) -> Node:
        """Where the body begins."""
        assert self.body is not None, "a rule is defined before it runs"
        return self.body.begin(self.end)


# Items ---------------------------------------------------------------------------------------------------------------


class Item:
    """Compared by identity once `Space.unique` has seen it; `key` says what equal means before."""

    productive: bool = True
    """Derives some string."""
    nullable: bool = False
    """Derives the empty string."""

    @property
    def key(self) -> Hashable:
        raise NotImplementedError

    def begin(self, following: Node) -> Node:
        """The node from which the item and then `following` is read."""
        return following.space.node(self, None, following)

    def edges(self, at: Node) -> Edges:
        """What may be done at a place in this item."""
        raise NotImplementedError


class End(Item):
    """The end of a rule."""

    def __init__(self, tag: str | None = None) -> None:
        self.tag = tag

    def edges(self, at: Node) -> Edges:
        return Edges(accepts=[FREE])


class Nothing(Item):
    """The empty language."""

    productive = False

    @property
    def key(self) -> Hashable:
        return "nothing"

    def edges(self, at: Node) -> Edges:
        return Edges()


class Bytes(Item):
    """A literal; the position is the number of bytes read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.nullable = not data

    @property
    def key(self) -> Hashable:
        return ("bytes", self.data)

    def begin(self, following: Node) -> Node:
        return following.space.node(self, 0, following) if self.data else following

    def edges(self, at: Node) -> Edges:
        offset = at.position
        assert isinstance(offset, int)
        target = at.at(offset + 1) if offset + 1 < len(self.data) else at.following
        byte = self.data[offset]
        return Edges(reads=[(byte, byte, target, FREE)])


class Regular(Item):
    """A byte automaton; the position is its state."""

    def __init__(self, dfa: Dfa) -> None:
        self.dfa = dfa
        self.productive = not dfa.is_empty
        self.nullable = 0 in dfa.accepting

    @property
    def key(self) -> Hashable:
        return ("regular", self.dfa)

    def begin(self, following: Node) -> Node:
        return following.space.node(self, 0, following)

    def edges(self, at: Node) -> Edges:
        state = at.position
        assert isinstance(state, int)
        reads = [(low, high, at.at(target), FREE) for low, high, target in self.dfa.rows[state]]
        return Edges(reads=reads, silent=[at.following] if state in self.dfa.accepting else [])


class InOrder(Item):
    """One after the other. Has no nodes of its own."""

    def __init__(self, items: tuple[Item, ...]) -> None:
        self.items = items
        self.productive = all(item.productive for item in items)
        self.nullable = all(item.nullable for item in items)

    @property
    def key(self) -> Hashable:
        return ("in order", self.items)

    def begin(self, following: Node) -> Node:
        for item in reversed(self.items):
            following = item.begin(following)
        return following


class Either(Item):
    """The union."""

    def __init__(self, items: tuple[Item, ...]) -> None:
        self.items = tuple(item for item in items if item.productive)
        self.productive = bool(self.items)
        self.nullable = any(item.nullable for item in self.items)

    @property
    def key(self) -> Hashable:
        return ("either", self.items)

    def edges(self, at: Node) -> Edges:
        return Edges(silent=[item.begin(at.following) for item in self.items])


class Loop(Item):
    """One or more items, unbounded, with a separator between. Position: None before the first, "more" after one."""

    def __init__(self, item: Item, separator: Item) -> None:
        self.item, self.separator = item, separator
        self.productive, self.nullable = item.productive, item.nullable

    @property
    def key(self) -> Hashable:
        return ("loop", self.item, self.separator)

    def edges(self, at: Node) -> Edges:
        again = self.item.begin(at.at("more"))
        if at.position is None:
            return Edges(silent=[again])
        more = [self.separator.begin(again)] if self.separator.productive else []
        return Edges(silent=[at.following, *more])


class Guarded(Item):
    """An action before what follows: the reads, calls and ends that follow carry it."""

    def __init__(self, action: Action) -> None:
        self.action = action

    @property
    def key(self) -> Hashable:
        return ("guarded", self.action)

    def edges(self, at: Node) -> Edges:
        found = Edges()
        for node in at.following.closure:
            edges, then = node.edges, self.action.then
            found.reads.extend((low, high, target, then(action)) for low, high, target, action in edges.reads)
            found.calls.extend((rule, target, then(action)) for rule, target, action in edges.calls)
            found.specials.extend((token, target, then(action)) for token, target, action in edges.specials)
            found.accepts.extend(map(then, edges.accepts))
        return found


class Counted(Item):
    """A bounded repetition; the body of a rule, whose counter is the number of items begun."""

    def __init__(self, item: Item, separator: Item, minimum: int, maximum: int | None) -> None:
        self.item, self.separator = item, separator
        self.minimum, self.maximum = minimum, UNBOUNDED if maximum is None else maximum
        self.nullable = minimum == 0 or (minimum == 1 and item.nullable)
        self.productive = item.productive

    @property
    def key(self) -> Hashable:
        return ("counted", self.item, self.separator, self.minimum, self.maximum)

    def edges(self, at: Node) -> Edges:
        space = at.space
        one_more = space.unique(Guarded(Action(0, self.maximum - 1, 1)))
        if at.position is None:
            silent = [one_more.begin(self.item.begin(at.at("more")))]
            return Edges(silent=[*silent, at.following] if self.minimum == 0 else silent)
        enough = space.unique(Guarded(Action(self.minimum, UNBOUNDED, 0)))
        silent = [enough.begin(at.following)]
        if self.separator.productive:
            silent.append(one_more.begin(self.separator.begin(self.item.begin(at.at("more")))))
        return Edges(silent=silent)


class Call(Item):
    """A call of a rule. `may_skip`: an empty match of the rule is allowed too."""

    def __init__(self, rule: Rule, *, productive: bool = True, may_skip: bool = True) -> None:
        self.rule, self.productive = rule, productive
        self.nullable = rule.nullable and may_skip

    @property
    def key(self) -> Hashable:
        return ("call", self.rule, self.nullable)

    def edges(self, at: Node) -> Edges:
        silent = [at.following] if self.nullable else []
        return Edges(calls=[(self.rule, at.following, FREE)], silent=silent)


class SpecialToken(Item):
    """One special token, by id."""

    def __init__(self, token: int) -> None:
        self.token = token

    @property
    def key(self) -> Hashable:
        return ("special", self.token)

    def edges(self, at: Node) -> Edges:
        return Edges(specials=[(self.token, at.following, FREE)])
