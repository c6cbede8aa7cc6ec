"""GBNF and the plain EBNF around it (`name ::= ...`) -> the intermediate representation.

    root  ::= object
    pair  ::= string ":" ws value      # literals, [classes], (groups), * + ? {m,n}, | alternatives, # comments
Without a lexer: every reading is followed side by side. Recursion is a call; left recursion is refused.
"""

import re
from typing import NoReturn

from ramet.constrained.automaton import ir
from ramet.constrained.regex.language import tree_language
from ramet.constrained.regex.syntax import Chars, PatternError, parse
from ramet.constrained.regex.text import to_utf8
from ramet.runtime.errors import GrammarRefused

_RULE = re.compile(r"^\s*<?([A-Za-z_][\w-]*)>?\s*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""\s+ | \#[^\n]* | (?P<define><?[A-Za-z_][\w-]*>?\s*::=) | (?P<name><?[A-Za-z_][\w-]*>?)
      | (?P<string>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*') | (?P<chars>\[(?:[^\]\\]|\\.)*\])
      | (?P<bounds>\{\s*\d*\s*(?:,\s*\d*\s*)?\}) | (?P<sign>[()|*+?.])""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_MAX_DEPTH = 128

Token = tuple[str, str, int]
"""(kind, text, offset)."""


def is_gbnf(grammar: str) -> bool:
    """Whether the text defines rules with `::=`."""
    return _RULE.search(grammar) is not None


def translate(grammar: str, start: str = "root", *, at: str = "$.grammar") -> ir.Grammar:
    """The grammar of a text; `start` falls back to `root`, GBNF's own name for it. Raises GrammarRefused."""
    return _Translator(grammar, at).run(start)


class _Translator:
    def __init__(self, text: str, at: str) -> None:
        self.text, self.at = text, at
        self.tokens = list(self._scanned())
        self.position = 0

    def run(self, start: str) -> ir.Grammar:
        rules: dict[str, ir.Expr] = {}
        while self.position < len(self.tokens):
            kind, text, offset = self.take()
            if kind != "define":
                self.refuse("a rule `name ::= ...`", text, offset)
            rules[_name(text.removesuffix("::="))] = self.alternatives(0)
        first = start if start in rules else "root"
        if first not in rules:
            self.refuse(f"a rule named {start!r} or 'root'", ", ".join(rules)[:100], 0)
        return ir.Grammar(rules, first)

    # Reading ---------------------------------------------------------------------------------------------------------

    def _scanned(self) -> list[Token]:
        found, offset = [], 0
        while offset < len(self.text):
            match = _TOKEN.match(self.text, offset)
            if match is None:
                self.refuse("a name, string, class or sign", self.text[offset : offset + 20], offset)
            if match.lastgroup is not None:
                found.append((match.lastgroup, match.group(), offset))
            offset = match.end()
        return found

    def peek(self) -> Token:
        return self.tokens[self.position] if self.position < len(self.tokens) else ("end", "", len(self.text))

    def take(self) -> Token:
        token = self.peek()
        self.position += 1
        return token

    def refuse(self, expected: str, got: str, offset: int) -> NoReturn:
        line = self.text.count("\n", 0, offset) + 1
        raise GrammarRefused(
            expected=expected, got=got, at=self.at, hint=f"Line {line} of the grammar.", code="invalid_grammar"
        )

    # Expressions -----------------------------------------------------------------------------------------------------

    def alternatives(self, depth: int) -> ir.Expr:
        if depth > _MAX_DEPTH:
            self.refuse(f"at most {_MAX_DEPTH} nested groups", "more", self.peek()[2])
        branches = [self.sequence(depth)]
        while self.peek()[1] == "|" and self.peek()[0] == "sign":
            self.take()
            branches.append(self.sequence(depth))
        return branches[0] if len(branches) == 1 else ir.Alt(tuple(branches))

    def sequence(self, depth: int) -> ir.Expr:
        items: list[ir.Expr] = []
        while self.peek()[0] in ("name", "string", "chars") or self.peek()[1] in ("(", "."):
            items.append(self.repeated(self.item(depth)))
        return items[0] if len(items) == 1 else ir.Seq(tuple(items))

    def repeated(self, item: ir.Expr) -> ir.Expr:
        while True:
            kind, text, _ = self.peek()
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(text) if kind == "sign" else None
            if kind == "bounds":
                bounds = _bounds(text)
            if bounds is None:
                return item
            self.take()
            item = ir.Repeat(item, *bounds)

    def item(self, depth: int) -> ir.Expr:
        kind, text, offset = self.take()
        if kind == "name":
            return ir.Ref(_name(text))
        if kind == "string":
            return ir.Literal(_unescaped(text[1:-1]).encode())
        if kind == "chars" or text == ".":
            return self.chars(text, offset)
        inner = self.alternatives(depth + 1)
        if self.take()[1] != ")":
            self.refuse("a closing )", self.text[offset : offset + 20], offset)
        return inner

    def chars(self, text: str, offset: int) -> ir.Expr:
        try:
            tree = parse(text, flags="s")
        except PatternError as error:
            self.refuse("a character class", f"{text}: {error.reason}", offset)
        if not isinstance(tree, Chars):
            self.refuse("a character class", text, offset)
        return ir.Lang(to_utf8(tree_language(tree)))


def _name(text: str) -> str:
    return text.strip().strip("<>")


def _bounds(text: str) -> tuple[int, int | None]:
    low, comma, high = text.strip("{} ").partition(",")
    minimum = int(low.strip() or 0)
    if not comma:
        return minimum, minimum
    return minimum, int(high) if high.strip() else None


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        body = match.group(1)
        return chr(int(body[1:], 16)) if len(body) > 1 else _ESCAPES.get(body, body)

    return re.sub(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", one, text, flags=re.DOTALL)
