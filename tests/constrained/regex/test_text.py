"""Code points to UTF-8 and to the inside of JSON strings, against Python's own encoders."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.constrained.regex import dfa as regular
from ramet.constrained.regex.text import to_json_content, to_utf8

EDGES = [0, 0x1F, 0x20, 0x22, 0x2F, 0x5C, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]


@given(st.text(max_size=4))
def test_utf8_of_any_text(text: str) -> None:
    assert to_utf8(regular.any_text()).matches(text.encode())


@pytest.mark.parametrize("bad", [b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xc3"])
def test_utf8_refuses_what_is_none(bad: bytes) -> None:
    assert not to_utf8(regular.any_text()).matches(bad)


@given(st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF))
def test_ranges_keep_their_ends(a: int, b: int, c: int) -> None:
    low, high = min(a, b), max(a, b)
    surrogate = 0xD800 <= c <= 0xDFFF
    one = regular.Dfa((((low, high, 1),), ()), frozenset({1}))
    if not surrogate:
        assert to_utf8(one).matches(chr(c).encode()) == (low <= c <= high)
        assert to_json_content(one, all_escapes=True).dfa.matches(json.dumps(chr(c))[1:-1].encode()) == (
            low <= c <= high
        )


@pytest.mark.parametrize("code_point", EDGES)
def test_json_spellings(code_point: int) -> None:
    usual = to_json_content(regular.any_text()).dfa
    every = to_json_content(regular.any_text(), all_escapes=True).dfa
    raw = json.dumps(chr(code_point), ensure_ascii=False)[1:-1].encode()
    escaped = "".join(
        f"\\u{int.from_bytes(pair, 'big'):04X}" for pair in _pairs(chr(code_point).encode("utf-16-be"))
    ).encode()
    assert usual.matches(raw) and every.matches(raw) and every.matches(escaped) and every.matches(escaped.lower())
    assert usual.matches(escaped) == (code_point < 0x20)
    assert usual.matches(chr(code_point).encode()) == (code_point >= 0x20 and chr(code_point) not in '"\\')


def test_an_excluded_text_is_excluded_in_every_spelling() -> None:
    content = to_json_content(regular.complement(regular.from_texts(["é", "a/b"])), all_escapes=True).dfa
    for spelling in ("é", "\\u00E9", "\\u00e9", "a/b", "a\\/b", "\\u0061/b"):
        assert not content.matches(spelling.encode())
    assert not content.matches(b"\\ud83d")  # a lone surrogate


def _pairs(data: bytes) -> list[bytes]:
    return [data[i : i + 2] for i in range(0, len(data), 2)]
