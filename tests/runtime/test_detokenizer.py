"""Stream text equals whole text, and a stop string is cut to the character, wherever the tokens' edges are."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.detokenizer import Cut, Decoded, StreamDecoder, TokenTable, detokenize
from ramet.runtime.errors import BadRequest

BYTES = TokenTable(pieces=[bytes([byte]) for byte in range(256)] + [b"<|end|>"], special_ids=frozenset({256}))


def spelled(*pieces: str | bytes) -> TokenTable:
    """A table whose tokens 0, 1, 2, ... are these."""
    return TokenTable(pieces=[piece.encode() if isinstance(piece, str) else piece for piece in pieces])


def stream(decoder: StreamDecoder, pushes: list[list[int]]) -> tuple[list[str], Cut | None]:
    texts = []
    for tokens in pushes:
        decoded = decoder.push(tokens)
        texts.append(decoded.text)
        if decoded.cut is not None:
            return texts, decoded.cut
    decoded = decoder.finish()
    return [*texts, decoded.text], decoded.cut


@pytest.mark.parametrize("text", ["👩‍👩‍👧 family", "漢字かな", "naïve", "a\u0300\U0001f1e9\U0001f1ea", "\x00\n"])
def test_streams_whole_characters_only(text: str) -> None:
    texts, _ = stream(StreamDecoder(BYTES), [[byte] for byte in text.encode()])
    assert "".join(texts) == text
    assert not any("\ufffd" in piece for piece in texts)


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"a\x80b", ["a", "\ufffd", "b", ""]),  # a lone continuation byte can never become valid: replaced at once
        (b"\xe6\xbc", ["", "", "\ufffd"]),  # cut short by max_tokens: one replacement, at the end
        (b"\xe6\xbcA", ["", "", "\ufffdA", ""]),  # surely invalid once the A comes
        (b"\xf0\x9f\x91", ["", "", "", "\ufffd"]),
        (b"\xff\xfe", ["\ufffd", "\ufffd", ""]),
    ],
)
def test_replaces_a_broken_character_once_and_as_soon_as_it_is_certain(data: bytes, pieces: list[str]) -> None:
    assert stream(StreamDecoder(BYTES), [[byte] for byte in data])[0] == pieces


@given(st.binary(max_size=40), st.randoms(use_true_random=False))
def test_stream_text_equals_whole_text_for_any_bytes_and_any_pushes(data: bytes, rng: random.Random) -> None:
    tokens, pushes = list(data), []
    while tokens:
        size = rng.randint(1, 4)
        pushes.append(tokens[:size])
        tokens = tokens[size:]
    assert "".join(stream(StreamDecoder(BYTES), pushes)[0]) == detokenize(BYTES, list(data))


@pytest.mark.parametrize(
    ("pieces", "stops", "texts", "cut"),
    [
        # in the middle of a token; the token before the cut is whole, "x" is left over
        (["ab", "xENDy", "z"], ["END"], ["ab", "x"], Cut("END", 1, "x")),
        # across three tokens; held back, never sent
        (["abE", "N", "Dy"], ["END"], ["ab", "", ""], Cut("END", 0, "ab")),
        # at the very first character
        (["END"], ["END"], [""], Cut("END", 0, "")),
        # what can't grow into a stop is not delayed
        (["E", "NE", "x"], ["END"], ["", "EN", "Ex", ""], None),
        # overlapping stops: the first to be complete wins, ...
        (["DEFGHIJ"], ["FGH", "DEFGHI"], ["DE"], Cut("FGH", 0, "DE")),
        # ... and of two that end together the longer
        (["aDEF"], ["EF", "DEF"], ["a"], Cut("DEF", 0, "a")),
        # a failed start of one stop is the start of another
        (["aab", "aac"], ["aabaab", "aac"], ["", "aab"], Cut("aac", 1, "")),
        # edge of token and stop agree
        (["one", "END", "two"], ["END"], ["one", ""], Cut("END", 1, "")),
        # held text is text when nothing follows
        (["one", "EN"], ["END"], ["one", "", "EN"], None),
        # characters of several bytes, split between tokens, on both sides of the cut
        (["é", b"\xe6\xbc", b"\xa2\xe5\xad", b"\x97!"], ["字"], ["é", "", "漢", ""], Cut("字", 1, "漢")),
    ],
)
def test_cuts_exactly_before_the_stop(
    pieces: list[str | bytes], stops: list[str], texts: list[str], cut: Cut | None
) -> None:
    decoder = StreamDecoder(spelled(*pieces), stops=stops)
    assert stream(decoder, [[token] for token in range(len(pieces))]) == (texts, cut)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_the_cut_does_not_depend_on_token_edges(size: int) -> None:
    text = "one ENtwo ENDthree END"
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    texts, cut = stream(StreamDecoder(spelled(*pieces), stops=["END", "DthreX"]), [list(range(len(pieces)))])
    assert cut is not None
    assert "".join(texts) == "one ENtwo "
    assert "".join(pieces[: cut.num_tokens]) + cut.leftover == "one ENtwo "


@given(
    st.lists(st.text("abc", min_size=1, max_size=3), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
)
def test_stops_equal_a_plain_search(pieces: list[str], stops: list[str], include_stop: bool) -> None:
    text = "".join(pieces)
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    decoder = StreamDecoder(spelled(*pieces), stops=stops, include_stop=include_stop)
    texts, cut = stream(decoder, [[token] for token in range(len(pieces))])
    if not ends:
        assert ("".join(texts), cut) == (text, None)
        return
    end, negative_length, stop = min(ends)
    assert cut is not None
    assert cut.stop == stop
    assert "".join(texts) == text[: end if include_stop else end + negative_length]
    assert "".join(pieces[: cut.num_tokens]) + cut.leftover == "".join(texts)


def test_sends_all_but_the_longest_suffix_that_may_grow() -> None:
    decoder = StreamDecoder(spelled("xabab", "c"), stops=["ababd", "abc"])
    assert decoder.push([0]) == Decoded("x")
    assert decoder.num_held == 4
    assert decoder.push([1]) == Decoded("ab", Cut("abc", 0, "xab"))


def test_keeps_the_stop_where_asked() -> None:
    decoder = StreamDecoder(spelled("ab", "EN", "Dx"), stops=["END"], include_stop=True)
    assert stream(decoder, [[0], [1], [2]]) == (["ab", "", "END"], Cut("END", 2, "D"))


def test_a_stop_within_min_tokens_does_not_count() -> None:
    decoder = StreamDecoder(spelled("END", "a", "END"), stops=["END"], min_tokens=2)
    assert stream(decoder, [[0], [1], [2]]) == (["END", "a", ""], Cut("END", 2, ""))


def test_special_tokens_are_skipped_or_spelled() -> None:
    tokens = [*b"hi", 256, 999]  # 999: a padding row of the model's vocabulary
    assert stream(StreamDecoder(BYTES), [tokens])[0] == ["hi", ""]
    assert stream(StreamDecoder(BYTES, skip_special_tokens=False), [tokens])[0] == ["hi<|end|>", ""]
    assert detokenize(BYTES, tokens, skip_special_tokens=False) == "hi<|end|>"


@pytest.mark.parametrize(("at_start", "text"), [(True, "one two"), (False, " one two")])
def test_a_sentencepiece_text_loses_its_first_space_only_at_its_start(at_start: bool, text: str) -> None:
    table = TokenTable(pieces=[b"", b" one", b" two"], strips_leading_space=True)
    assert "".join(stream(StreamDecoder(table, at_text_start=at_start), [[0], [1], [2]])[0]) == text
    assert detokenize(table, [0, 1, 2], at_text_start=at_start) == text


def test_refuses_an_empty_stop() -> None:
    with pytest.raises(BadRequest, match="not empty"):
        StreamDecoder(BYTES, stops=["a", ""])
