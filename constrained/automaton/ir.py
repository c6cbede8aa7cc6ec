"""The intermediate representation: what every front end lowers to, and what the machine runs.

A `Grammar` is a set of named rules over bytes. A front end (JSON Schema, Lark, segments, a plain regex) builds these
values and nothing else; it never sees tokens, states, registers or masks. Values are immutable and hashable, and two
equal values share one automaton, in one grammar and across the grammars of a tokenizer.

Laws
    L1  The language of a grammar is the set of byte strings (and special tokens) that its start rule derives.
    L2  Alternatives may overlap in any way: the machine follows all of them. Overlap costs speed, never exactness.
    L3  A rule may refer to itself, but not before it has consumed a byte (no left recursion): refused otherwise.
    L4  `NOTHING` is the empty language. What can only lead to it is pruned, so it may stand anywhere.
    L5  Every count here is a register or a lazily made state. A bound of 100_000 costs what a bound of 3 costs.

Example: the schema {"type": "object", "properties": {"name": {"type": "string", "maxLength": 40},
"next": {"$ref": "#"}}, "required": ["name"], "additionalProperties": false} is

    Grammar(start="#", rules={"#": Object(members=(Member("name", String(maximum=40), required=True),
                                                   Member("next", Ref("#"))), spacing=BOUNDED)})
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal as OneWord

from ramet.constrained.regex.dfa import Dfa


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly these bytes. `Literal(b'"type"')`; `Literal(b"")` is the empty string (see EMPTY)."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Lang:
    """A regular language over BYTES (`dfa.limit == 255`), written as such: numbers, a plain regex, whitespace.

    `regex.text.to_utf8(dfa)` makes a byte DFA of a code-point DFA.
    """

    dfa: Dfa


@dataclass(frozen=True, slots=True)
class String:
    """One JSON string with its quotes. The machine escapes; the front end thinks in decoded code points.

    `pattern` is a CODE-POINT DFA of the decoded text (None: any text), already anchored; lengths count decoded code
    points. All hold together, exactly. The output may spell a code point raw or by a short escape (quotation mark,
    backslash, slash, b, f, n, r, t), controls also by their four hex digits; where `escapes` is "all", every code point
    may be spelt by hex digits (a surrogate pair counts 1). Raw control characters never occur.

    String()                                  any JSON string
    String(minimum=1, maximum=40)             by a counter
    String(pattern=language("^a+$"))          pattern; with lengths the intersection of both
    """

    pattern: Dfa | None = None
    minimum: int = 0
    maximum: int | None = None
    escapes: OneWord["usual", "all"] = "usual"


@dataclass(frozen=True, slots=True)
class Seq:
    """One after the other. `Seq(())` is the empty string."""

    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """The union. `Alt(())` is the empty language."""

    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`item` between `minimum` and `maximum` times (None: without limit), with `separator` between two items.

    A byte string that splits in several ways is fine, and so is an item or separator that may be empty.
    """

    item: "Expr"
    minimum: int = 0
    maximum: int | None = None
    separator: "Expr | None" = None


@dataclass(frozen=True, slots=True)
class Ref:
    """A call of a rule of the grammar."""

    rule: str


@dataclass(frozen=True, slots=True)
class Spacing:
    """Where whitespace may stand in objects and arrays: each a BYTE language or None for nothing at all.

    The language must contain the empty string if the whitespace is optional. None stands around a top-level value.
    """

    after_open: Dfa | None = None
    before_close: Dfa | None = None
    before_comma: Dfa | None = None
    after_comma: Dfa | None = None
    before_colon: Dfa | None = None
    after_colon: Dfa | None = None


COMPACT = Spacing()
"""No whitespace at all. The bounded and the exact form are in `automaton.spacing`."""


@dataclass(frozen=True, slots=True)
class Member:
    """A declared property of an object. `name` is the decoded key; the machine escapes it (one canonical spelling)."""

    name: str
    value: "Expr"
    required: bool = False


@dataclass(frozen=True, slots=True)
class FreeMember:
    """Undeclared keys: any key of `keys` (a CODE-POINT DFA over decoded keys, None: any) takes `value`.

    The front end keeps the `keys` of an object's free members disjoint from each other and from the declared names.
    Free keys follow the declared ones (order "fixed") or stand anywhere (order "any"). Duplicates among free keys are
    not prevented; the ledger says so. But they never make up for different ones: `Object.minimum` counts free keys once
    that a hash does not tell apart. `parts`: how many values it has (1: all keys of a free member count as one).
    """

    keys: Dfa | None
    value: "Expr"
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Clause:
    """If all members of `present` occur then at least one of `then` occurs. Indices into `Object.members`.

    dependentRequired a -> [b, c] is two clauses; anyOf of required lists is Clause((), (a, b)) where the lists have
    one name each; not {required: [a, b]} is Clause((a, b), ()).
    """

    present: tuple[int, ...]
    then: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Object:
    """One JSON object. Every declared key at most once. Never runs into a dead end: what can't be completed within
    `maximum`, the clauses and the required members is not begun.

    `order` "fixed": members in the order given, then free keys. "any": all in any order.
    A member whose value is NOTHING can't occur; if required, the object is NOTHING.
    """

    members: tuple[Member, ...] = ()
    free: tuple[FreeMember, ...] = ()
    minimum: int = 0
    maximum: int | None = None
    clauses: tuple[Clause, ...] = ()
    order: OneWord["fixed", "any"] = "fixed"
    spacing: Spacing = COMPACT


@dataclass(frozen=True, slots=True)
class Contains:
    """Between `minimum` and `maximum` items are of `match`; the others are of `other`. The two should be disjoint
    (`other` = item minus match); where they overlap, a text is in if some reading is.
    """

    match: "Expr"
    other: "Expr"
    minimum: int = 1
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class Array:
    """One JSON array: `prefix` items by position, then any number of `items` (None: none more).

    `minimum` and `maximum` count all items. At most one of `unique` and `contains` is given, and only without prefix:
    unique     the finite list of possible items, each at most once (uniqueItems over an enum); `items` is ignored
    contains   see Contains; `items` is ignored
    """

    prefix: tuple["Expr", ...] = ()
    items: "Expr | None" = None
    minimum: int = 0
    maximum: int | None = None
    unique: tuple["Expr", ...] | None = None
    contains: Contains | None = None
    spacing: Spacing = COMPACT


@dataclass(frozen=True, slots=True)
class Tagged:
    """`item`, and events that say at which output byte it begins and ends. The language is the item's."""

    name: str
    item: "Expr"


@dataclass(frozen=True, slots=True)
class Special:
    """One special token, by its text (`<|im_end|>`) or id. Never the characters of its text."""

    token: str | int


Expr = Literal | Lang | String | Seq | Alt | Repeat | Ref | Object | Array | Tagged | Special
"""A language over bytes and special tokens."""

EMPTY = Literal(b"")
"""The empty string."""
NOTHING = Alt(())
"""The empty language: no string at all, not even the empty one."""


@dataclass(frozen=True)
class Grammar:
    """Named rules and the one that the output must match."""

    rules: Mapping[str, Expr]
    start: str
    notes: tuple[object, ...] = field(default=(), compare=False)
    """Ledger entries that the front end collected; the machine does not read them."""
