"""Patterns against Python's engine on random texts, and what is refused."""

import random
import re

import pytest

from ramet.constrained.regex.language import language
from ramet.runtime.errors import GrammarRefused

PATTERNS = [
    r"^a+$",
    r"a|b",
    r"^(\d{4})-(\d\d)$",
    r"\bfoo\b",
    r"^(?!foo)[a-z]+$",
    r"^((?!ab).)*$",
    r"^.*(?<!x)$",
    r"[^a-c]{2,3}?",
    r"^$",
    r"",
    r"^(a|bc)*d?$",
    r"(?i)aBc",
    r"^\w+@\w+\.com$",
    r"^(?=.*a)(?=.*b).*$",
    r"^[\w.-]+$",
    r"a\b ?b",
    r"\Bab\B",
    r"^(a?b|^c)+$",
    r"(^a|b$)",
    r"^(?!.*\bfo\b).*$",
    r"(?<=a)b",
    r"^(|.*)$",
    r"^(?:a(?!b)|b){3}$",
    r"(?!a)\w",
    r"x{2,}|b{0,2}",
]
ALPHABET = "abcdfox1-2 .@mA"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_finds_what_the_backtracking_engine_finds(pattern: str) -> None:
    random_texts = random.Random(7)
    found, whole, theirs = language(pattern), language(pattern, whole=True), re.compile(pattern)
    for _ in range(1500):
        text = "".join(random_texts.choice(ALPHABET) for _ in range(random_texts.randrange(7)))
        assert found.matches(text) == bool(theirs.search(text)), text
        assert whole.matches(text) == bool(theirs.fullmatch(text)), text


@pytest.mark.parametrize(
    "pattern", ["foo**", "[", "(", "a{3,1}", r"\1", "(?P<a>x)(?P=a)", "(?!a)*", ")", "*a", r"\q", "[b-a]", "a++"]
)
def test_refuses_with_the_place(pattern: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        language(pattern, at="#/properties/a/pattern")
    assert caught.value.at == "#/properties/a/pattern" and "character" in str(caught.value)


@pytest.mark.parametrize("pattern", ["((a{1,100}){1,100}){1,100}", "(a|b)*a(a|b){20}"])
def test_explosions_meet_the_limit(pattern: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        language(pattern)
    assert caught.value.code == "grammar_too_complex"


def test_catastrophic_for_others_is_plain_here() -> None:
    assert language("^(a+)+$").matches("a" * 5000) and not language("^(a+)+$").matches("a" * 5000 + "b")


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("^[é]$", "é", "e"),
        ("^[a-zà-ÿ]+$", "çava", "ÇAVA"),
        (r"^a\/b$", "a/b", "a\\/b"),
        (r"^hello there indeed\!$", "hello there indeed!", "hello there indeed\\!"),
        (r"^\u00e9\x41$", "éA", "e"),
        (r"^\p{Lu}+$", "ÄB", "aB"),
        (r"^[^]$", "\n", ""),
        (r"^\ud83d\ude00$", "😀", "x"),
    ],
)
def test_unicode_and_escapes(pattern: str, inside: str, outside: str) -> None:
    assert language(pattern).matches(inside) and not language(pattern).matches(outside)
