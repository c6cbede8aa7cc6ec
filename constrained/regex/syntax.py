"""The syntax of patterns: text -> tree. ECMA-262 and Python's common subset, both readings of which agree here.

Knows no automata. Laziness and possessiveness of quantifiers describe the same language or are refused; groups,
named or not, are only brackets; back-references are no regular language and are refused. `\\d` and `\\w` are ASCII,
`\\s` and `.` as ECMA-262 says; `\\p{..}` takes general categories.
"""

import itertools
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from ramet.constrained.regex.dfa import MAX_CODE_POINT, SURROGATES

Ranges = tuple[tuple[int, int], ...]


class PatternError(ValueError):
    """What is wrong, and at which character."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at character {position}")
        self.reason, self.position = reason, position


@dataclass(frozen=True)
class Chars:
    """One code point of these ranges."""

    ranges: Ranges


@dataclass(frozen=True)
class Concat:
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Alternate:
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Loop:
    """`item` minimum..maximum times (None: without limit)."""

    item: "Node"
    minimum: int
    maximum: int | None


@dataclass(frozen=True)
class Assert:
    """Zero-width: "start", "end", "word" (a word boundary), "not_word"."""

    kind: str


@dataclass(frozen=True)
class Look:
    """Look-around: what follows (or precedes, `behind`) matches `item`, or does not (`negative`)."""

    item: "Node"
    negative: bool
    behind: bool


Node = Chars | Concat | Alternate | Loop | Assert | Look

DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Ranges = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
NEWLINE: Ranges = ((0x0A, 0x0A),)
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
ALL: Ranges = ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, MAX_CODE_POINT))

_CONTROL = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7}
_POSIX = {"alpha": ((65, 90), (97, 122)), "digit": DIGIT, "alnum": ((48, 57), (65, 90), (97, 122))}
_MAX_REPEAT = 100_000
_MAX_GROUPS = 256
_MAX_DEPTH = 128


def parse(pattern: str, *, flags: str = "") -> Node:
    """The tree of a pattern. `flags`: i (case), s (dot takes line ends), x (blanks are layout), u (Unicode, always on),
    p (classes and dot as Python has them: Unicode, and dot takes all but the newline)."""
    for flag in flags:
        if flag not in "isxup":
            raise PatternError(f"flag {flag!r} is not supported", 0)
    parser = _Parser(pattern, set(flags))
    tree = parser.alternation(0)
    if not parser.at_end:
        raise PatternError(f"unmatched {parser.peek()!r}", parser.position)
    return tree


def has_lazy_quantifier(pattern: str, *, flags: str = "") -> bool:
    """Whether some quantifier takes as little as it can. The pattern must be a legal one."""
    parser = _Parser(pattern, set(flags))
    parser.alternation(0)
    return parser.has_lazy


def normalised(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, disjoint, joined; surrogates left out."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return intersected(tuple(out), ALL)


def intersected(a: Ranges, b: Ranges) -> Ranges:
    """Common part of two sorted range lists."""
    found = ((max(p, r), min(q, s)) for p, q in a for r, s in b if max(p, r) <= min(q, s))
    return tuple(sorted(found))


def inverted(ranges: Ranges) -> Ranges:
    """All code points outside."""
    out, start = [], 0
    for low, high in normalised(ranges):
        if low > start:
            out.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        out.append((start, MAX_CODE_POINT))
    return normalised(out)


def case_folded(ranges: Ranges) -> Ranges:
    """With the other case of each letter."""
    if sum(high - low + 1 for low, high in ranges) > 70_000:
        return ranges
    found = list(ranges)
    for code_point in itertools.chain.from_iterable(range(low, high + 1) for low, high in ranges):
        cases = (chr(code_point).lower(), chr(code_point).upper())
        found.extend((ord(other), ord(other)) for other in cases if len(other) == 1)
    return normalised(found)


@cache
def category(name: str) -> Ranges:
    """Code points of a Unicode general category: `L`, `Lu`, `Letter` are not told apart by length here."""
    chosen = (c for c in range(MAX_CODE_POINT + 1) if unicodedata.category(chr(c)).startswith(name))
    return normalised((c, c) for c in chosen)


@cache
def _python_class(letter: str) -> Ranges:
    tests = {"d": str.isdecimal, "w": lambda c: c.isalnum() or c == "_", "s": str.isspace}
    return normalised((c, c) for c in range(MAX_CODE_POINT + 1) if tests[letter](chr(c)))


_CATEGORIES = {"Letter": "L", "Mark": "M", "Number": "N", "Punctuation": "P", "Symbol": "S", "Separator": "Z"}


class _Parser:
    def __init__(self, pattern: str, flags: set[str]) -> None:
        self.pattern, self.position, self.flags = pattern, 0, flags
        self.num_groups = 0
        self.has_lazy = False

    # Reading ---------------------------------------------------------------------------------------------------------

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.pattern)

    def peek(self) -> str:
        return self.pattern[self.position] if not self.at_end else ""

    def take(self) -> str:
        if self.at_end:
            raise PatternError("the pattern ends too early", self.position)
        self.position += 1
        return self.pattern[self.position - 1]

    def accept(self, text: str) -> bool:
        if self.pattern.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def refuse(self, reason: str) -> PatternError:
        return PatternError(reason, self.position)

    # Structure -------------------------------------------------------------------------------------------------------

    def alternation(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise self.refuse(f"more than {_MAX_DEPTH} nested groups")
        branches = [self.sequence(depth)]
        while self.accept("|"):
            branches.append(self.sequence(depth))
        return branches[0] if len(branches) == 1 else Alternate(tuple(branches))

    def sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while not self.at_end and self.peek() not in "|)":
            if "x" in self.flags and self.skip_layout():
                continue
            items.append(self.quantified(self.atom(depth)))
        return items[0] if len(items) == 1 else Concat(tuple(items))

    def skip_layout(self) -> bool:
        if self.peek().isspace():
            self.position += 1
            return True
        if self.peek() == "#":
            end = self.pattern.find("\n", self.position)
            self.position = len(self.pattern) if end < 0 else end + 1
            return True
        return False

    def quantified(self, item: Node) -> Node:
        bounds = self.quantifier()
        if bounds is None:
            return item
        if isinstance(item, Assert):
            raise self.refuse("nothing to repeat")
        if self.accept("+"):
            raise self.refuse("possessive quantifiers are not supported")
        self.has_lazy |= self.accept("?")  # the same language
        if self.quantifier() is not None:
            raise self.refuse("multiple repeat")
        if isinstance(item, Look):
            raise self.refuse("a repeated look-around is not supported")
        return Loop(item, *bounds)

    def quantifier(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.accept(sign):
                return bounds
        return self.braces() if self.peek() == "{" else None

    def braces(self) -> tuple[int, int | None] | None:
        """`{n}`, `{n,}`, `{n,m}`, `{,m}`; anything else in braces is literal text."""
        end = self.pattern.find("}", self.position)
        low, comma, high = self.pattern[self.position + 1 : end].partition(",") if end > 0 else ("", "", "")
        if not ((low or high) and all(part == "" or (part.isascii() and part.isdigit()) for part in (low, high))):
            return None
        minimum = int(low or 0)
        maximum = minimum if not comma else int(high) if high else None
        if max(minimum, maximum or 0) > _MAX_REPEAT:
            raise self.refuse(f"a repetition of more than {_MAX_REPEAT}")
        if maximum is not None and maximum < minimum:
            raise self.refuse("the bounds of a repetition are out of order")
        self.position = end + 1
        return minimum, maximum

    # Atoms -----------------------------------------------------------------------------------------------------------

    def atom(self, depth: int) -> Node:
        sign = self.take()
        match sign:
            case ".":
                return Chars(ALL if "s" in self.flags else inverted(NEWLINE if "p" in self.flags else LINE_ENDS))
            case "^":
                return Assert("start")
            case "$":
                return Assert("end")
            case "(":
                return self.group(depth)
            case "[":
                return self.char_class()
            case "\\":
                return self.escape()
            case "*" | "+" | "?":
                self.position -= 1
                raise self.refuse("nothing to repeat")
            case _:
                return self.one(ord(sign))

    def one(self, code_point: int) -> Node:
        return self.chars(((code_point, code_point),))

    def chars(self, ranges: Ranges) -> Chars:
        return Chars(case_folded(normalised(ranges)) if "i" in self.flags else normalised(ranges))

    def group(self, depth: int) -> Node:
        self.num_groups += 1
        if self.num_groups > _MAX_GROUPS:
            raise self.refuse(f"more than {_MAX_GROUPS} groups")
        outer = set(self.flags)
        opening = self.group_opening()
        inner = self.alternation(depth + 1)
        if opening == "flags":
            self.flags = outer
        if not self.accept(")"):
            raise self.refuse("missing )")
        if opening in ("=", "!", "<=", "<!"):
            return Look(inner, negative="!" in opening, behind="<" in opening)
        return inner

    def group_opening(self) -> str:
        """What kind of group begins here: "", "flags", or the sign of a look-around."""
        if not self.accept("?"):
            return ""
        for sign in ("=", "!", "<=", "<!"):
            if self.accept(sign):
                return sign
        if self.accept(":"):
            return ""
        if self.accept("P<") or self.accept("<"):
            end = self.pattern.find(">", self.position)
            if end < 0 or not self.pattern[self.position : end].isidentifier():
                raise self.refuse("a bad group name")
            self.position = end + 1
            return ""
        return self.inline_flags()

    def inline_flags(self) -> str:
        end = self.position
        while end < len(self.pattern) and self.pattern[end] in "isxu":
            end += 1
        letters = self.pattern[self.position : end]
        if letters and self.pattern[end : end + 1] == ":":
            self.position = end + 1
            self.flags |= set(letters)
            return "flags"
        if letters and self.pattern[end : end + 1] == ")" and self.position == 2:
            self.position = end  # for the whole pattern, as in Python
            self.flags |= set(letters)
            return ""
        raise self.refuse("this kind of group is not supported")

    # Escapes ---------------------------------------------------------------------------------------------------------

    def escape(self) -> Node:
        sign = self.peek()
        if sign in ("b", "B"):
            self.position += 1
            return Assert("word" if sign == "b" else "not_word")
        if sign in ("A", "Z", "z"):
            self.position += 1
            return Assert("start" if sign == "A" else "end")
        if (sign and sign in "123456789") or self.pattern.startswith(("k<", "g<"), self.position):
            raise self.refuse("back-references are not supported")
        return self.chars(self.escaped_ranges())

    def escaped_ranges(self) -> Ranges:
        """What a backslash stands for, inside a class or outside; the backslash is read already."""
        sign = self.take()
        shorthand = {"d": DIGIT, "w": WORD, "s": SPACE}.get(sign.lower())
        if shorthand is not None and "p" in self.flags:
            shorthand = _python_class(sign.lower())
        if shorthand is not None:
            return shorthand if sign.islower() else inverted(shorthand)
        if sign in ("p", "P"):
            return self.unicode_class(inverse=sign == "P")
        code_point = self.escaped_code_point(sign)
        return ((code_point, code_point),)

    def escaped_code_point(self, sign: str) -> int:
        if sign in _CONTROL:
            return _CONTROL[sign]
        if sign == "0":
            if self.peek().isdigit():
                raise self.refuse("octal escapes are not supported")
            return 0
        if sign == "x":
            return self.hex_number(2)
        if sign == "u":
            return self.unicode_escape()
        if sign == "U":
            return self.hex_number(8)
        if sign == "c" and self.peek().isascii() and self.peek().isalpha():
            return ord(self.take()) % 32
        if sign.isascii() and sign.isalnum():
            raise self.refuse(f"unknown escape \\{sign}")
        return ord(sign)

    def unicode_escape(self) -> int:
        if self.accept("{"):
            end = self.pattern.find("}", self.position)
            return self.hex_number(max(0, end - self.position), closing="}")
        high = self.hex_number(4)
        if 0xD800 <= high <= 0xDBFF and self.accept("\\u"):
            low = self.hex_number(4)
            if not 0xDC00 <= low <= 0xDFFF:
                raise self.refuse("a lone surrogate")
            return 0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00
        return high

    def hex_number(self, num_digits: int, closing: str = "") -> int:
        digits = self.pattern[self.position : self.position + num_digits]
        if len(digits) != num_digits or not digits or any(d not in "0123456789abcdefABCDEF" for d in digits):
            raise self.refuse("a bad hexadecimal escape")
        self.position += num_digits + len(closing)
        value = int(digits, 16)
        if value > MAX_CODE_POINT:
            raise self.refuse("a code point beyond Unicode")
        return value

    def unicode_class(self, *, inverse: bool) -> Ranges:
        end = self.pattern.find("}", self.position)
        if not self.accept("{") or end < 0:
            raise self.refuse("a bad \\p escape")
        name = self.pattern[self.position : end].removeprefix("General_Category=").removeprefix("gc=")
        self.position = end + 1
        if name in ("Any", "ASCII"):
            found: Ranges = ALL if name == "Any" else ((0, 127),)
        else:
            found = category(_CATEGORIES.get(name, name)) if len(name) <= 2 or name in _CATEGORIES else ()
        if not found:
            raise self.refuse(f"unknown Unicode class {name!r}")
        return inverted(found) if inverse else found

    # Classes ---------------------------------------------------------------------------------------------------------

    def char_class(self) -> Node:
        inverse = self.accept("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or self.peek() != "]":
            if first and self.peek() == "]":  # [] is empty and [^] is everything in ECMA-262
                break
            first = False
            if self.at_end:
                raise self.refuse("missing ]")
            ranges.extend(self.class_member())
        self.take()
        chosen = normalised(ranges)
        if "i" in self.flags:
            chosen = case_folded(chosen)
        return Chars(inverted(chosen) if inverse else chosen)

    def class_member(self) -> Ranges:
        if self.accept("[:"):
            name, found, _ = self.pattern[self.position :].partition(":]")
            if not found or name not in _POSIX:
                raise self.refuse("a bad POSIX class")
            self.position += len(name) + 2
            return _POSIX[name]
        low = self.class_atom()
        if self.peek() != "-" or self.pattern[self.position + 1 : self.position + 2] in ("]", ""):
            return low
        self.take()
        high = self.class_atom()
        if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
            return (*low, *high, (0x2D, 0x2D))  # [\w-.]: the hyphen is itself
        if low[0][0] > high[0][0]:
            raise self.refuse("a range out of order")
        return ((low[0][0], high[0][0]),)

    def class_atom(self) -> Ranges:
        sign = self.take()
        if sign != "\\":
            return ((ord(sign), ord(sign)),)
        if self.accept("b"):
            return ((8, 8),)
        if self.accept("-"):
            return ((0x2D, 0x2D),)
        return self.escaped_ranges()
