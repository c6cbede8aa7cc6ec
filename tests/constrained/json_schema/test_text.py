"""Schema texts are read strictly: what is ambiguous or hostile is refused with its pointer."""

import pytest

from ramet.constrained.json_schema.text import identity, parse
from ramet.runtime.errors import GrammarRefused


@pytest.mark.parametrize(
    ("text", "at", "code"),
    [
        ('{"a": {"b": 1, "b": 2}}', "#/a/b", "invalid_json"),
        ('{"const": [1, NaN]}', "#/const/1", "invalid_json"),
        ('{"minimum": 1e999}', "#/minimum", "invalid_json"),
        ('{"maximum": ' + "9" * 2_000 + "}", "#/maximum", "invalid_json"),
        ('{"x/y": "\\ud800"}', "#/x~1y", "invalid_json"),
        ("{", "#", "invalid_json"),
        ("", "#", "invalid_json"),
        ("[" * 100_000, "#", "limit_depth"),
        ('{"not":' * 400 + "{}" + "}" * 400, "#" + "/not" * 301, "limit_depth"),
        (" " * (1 << 20) + "{}", "#", "limit_bytes"),
        ("[" + "0," * 60_000 + "0]", "#", "limit_nodes"),
    ],
    ids=["twice", "nan", "infinite", "digits", "surrogate", "cut", "empty", "very deep", "deep", "long", "many"],
)
def test_refuses_at_the_pointer(text: str, at: str, code: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        parse(text)
    assert (caught.value.at, caught.value.code) == (at, code)


def test_identity_is_that_of_json_schema() -> None:
    same = [("1", "1.0"), ("100", "1e2"), ('{"a": 1, "b": [2]}', '{"b": [2.0], "a": 1}'), ("-0", "0")]
    differ = [("1", "true"), ("0", "false"), ('"1"', "1"), ("[1, 2]", "[2, 1]"), ("null", "false"), ("[]", "{}")]
    assert all(identity(parse(a)) == identity(parse(b)) for a, b in same)
    assert all(identity(parse(a)) != identity(parse(b)) for a, b in differ)


def test_keeps_order_and_spelling() -> None:
    value = parse('{"b": 1.50, "a": 12345678901234567890}')
    assert isinstance(value, dict)
    assert [(key, str(item)) for key, item in value.items()] == [("b", "1.50"), ("a", "12345678901234567890")]
