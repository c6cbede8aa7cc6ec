"""Lark grammars against lark: what we let through it parses, what it parses we let through."""

import random
import sys
from pathlib import Path

import lark
import pytest
from lark.exceptions import LarkError

from ramet.constrained.compile import compile
from ramet.constrained.lark import fallback
from ramet.constrained.spec import Lark
from ramet.constrained.state import GrammarState
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parents[1]))
from vocabularies import byte_vocabulary

VOCABULARY = byte_vocabulary()
END = VOCABULARY.special["<end>"]

STATEMENTS = r"""
start: (stmt ";")+
stmt: "if" expr "then" stmt | NAME "=" expr
expr: expr "+" term | expr "." NAME | term
term: NUMBER | NAME | ESCAPED_STRING | "(" expr ")"
%import common.CNAME -> NAME
%import common.NUMBER
%import common.ESCAPED_STRING
%import common.WS
%ignore WS
"""
JSON = r"""
?start: value
?value: object | array | ESCAPED_STRING | SIGNED_NUMBER | "true" | "false" | "null"
array: "[" [value ("," value)*] "]"
object: "{" [pair ("," pair)*] "}"
pair: ESCAPED_STRING ":" value
%import common.ESCAPED_STRING
%import common.SIGNED_NUMBER
%import common.WS
%ignore WS
"""
PRIORITIES = r"""
start: (A | B | C)+
A.2: "a"
B: /ab+/
C: /[a-c]/ "!"?
"""
OPERATORS = r"""
start: X (OP X)*
OP: "=" | "==" | "===" | "=>"
X: /x+/
_separated{thing}: thing ("," thing)*
"""
TEMPLATE = r"""
start: "(" _list{WORD} ")"
_list{item}: item ("," item)*
WORD: /[a-z]+/i
COMMENT: /#[^\n]*\n/
%ignore COMMENT
%ignore " "
"""
LAZY = r"""
start: (BLOCK | WORD)+
BLOCK: "/*" /(.|\n)*?/ "*/"
WORD: /\w+/
%ignore " "
"""
GRAMMARS = [STATEMENTS, JSON, PRIORITIES, OPERATORS, TEMPLATE, LAZY]

ACCEPTED = [
    (STATEMENTS, ["x=1;", "if x then y = (2 + z);", 'a="q\\"";b=1.5;', "ifx=1;", "x = a.b;", "x=1 .b;"]),
    (JSON, ["[1, 2.5e3, true]", '{"a": {"b": []}}', '"x"', "  null "]),
    (PRIORITIES, ["a", "aa", "c!", "b"]),
    (OPERATORS, ["x==x", "x===xx", "x=x", "x=>x"]),
    (TEMPLATE, ["(a)", "(a,Bc, d)", "(a,#x\n b)"]),
    (LAZY, ["/* a */", "x /* a * b */ y"]),
]
REJECTED = [
    (STATEMENTS, ["x=1", "if=1;", "x=1.b;", "=", "1x;"]),
    (JSON, ["[1,]", "{a:1}", "tru"]),
    (PRIORITIES, ["ab!x", "d"]),
    (OPERATORS, ["x==", "x= =x"]),
    (TEMPLATE, ["()", "(a b)"]),
    (LAZY, ["/* a */ */", "/* a"]),
]


def after(grammar: str, text: str) -> GrammarState:
    return compile(Lark(grammar=grammar), VOCABULARY).initial().advance_bytes(text.encode())


def theirs(grammar: str, text: str) -> bool:
    try:
        lark.Lark(grammar, parser="lalr", lexer="contextual").parse(text)
    except LarkError:
        return False
    return True


def cases(table: list[tuple[str, list[str]]]) -> list[tuple[str, str]]:
    return [(grammar, text) for grammar, texts in table for text in texts]


@pytest.mark.parametrize(("grammar", "text"), cases(ACCEPTED))
def test_accepts_what_lark_parses(grammar: str, text: str) -> None:
    assert theirs(grammar, text)
    assert after(grammar, text).accepting


@pytest.mark.parametrize(("grammar", "text"), cases(REJECTED))
def test_rejects_what_lark_rejects(grammar: str, text: str) -> None:
    assert not theirs(grammar, text)
    assert not after(grammar, text).accepting


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_random_outputs_are_parsed_by_lark(grammar: str) -> None:
    parser = lark.Lark(grammar, parser="lalr", lexer="contextual")
    compiled = compile(Lark(grammar=grammar), VOCABULARY)
    for seed in range(25):
        choose = random.Random(seed)
        state, data = compiled.initial(), b""
        for length in range(60):
            allowed = [t for t in state.allowed() if t == END or VOCABULARY.token_bytes[t].isascii()]
            assert allowed, f"no way on after {data!r}"
            if END in allowed and (length > 25 or choose.random() < 0.2):
                text = data.decode()
                parser.parse(text)
                break
            token = choose.choice([t for t in allowed if t != END] or allowed)
            state = state.advance(token)
            data += VOCABULARY.token_bytes[token]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_masks_equal_brute_force(grammar: str) -> None:
    compiled = compile(Lark(grammar=grammar), VOCABULARY)
    for seed in range(6):
        choose = random.Random(seed)
        state = compiled.initial()
        for _ in range(12):
            allowed = state.allowed()
            reading = [t for t in range(256 + 20) if t < END - 1 and not state.advance(t).is_dead]
            assert [t for t in allowed if t != END] == reading
            if not reading:
                break
            state = state.advance(choose.choice(reading))


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ('start: a | b\na: "x"\nb: "x"\n', "Reduce"),
        ("start: x", "x"),
        ("start: (", ""),
        ("start: A\n%declare A\n", ""),
        ("%import .secrets.x\nstart: x", "relative"),
        ("start: /(?<=a)\\bx/", ""),
    ],
)
def test_refusals(monkeypatch: pytest.MonkeyPatch, grammar: str, says: str) -> None:
    monkeypatch.setattr(fallback, "is_installed", lambda: False)
    with pytest.raises(GrammarRefused) as caught:
        compile(Lark(grammar=grammar), VOCABULARY)
    assert says.lower() in str(caught.value).lower()


GBNF = """
root   ::= object            # the whole
object ::= "{" ws pair ("," ws pair)* "}"
pair   ::= string ":" ws value
value  ::= object | string | [0-9]{1,3} | "true"
string ::= "\\"" [^"\\\\]* "\\""
ws     ::= " "?
"""


@pytest.mark.parametrize(
    ("text", "accepted"),
    [('{"a":1}', True), ('{"a": {"b":"c"}, "d":true}', True), ('{"a":1234}', False), ('{"a":1', False)],
)
def test_gbnf(text: str, accepted: bool) -> None:
    assert after(GBNF, text).accepting == accepted


@pytest.mark.parametrize("grammar", ['root ::= root "a"', "root ::= missing", 'root ::= ("a"', "root ::= [z-a]"])
def test_gbnf_refusals(grammar: str) -> None:
    with pytest.raises(GrammarRefused):
        compile(Lark(grammar=grammar), VOCABULARY)
