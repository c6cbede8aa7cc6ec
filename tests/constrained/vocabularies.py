"""Vocabularies for tests: the embedded model's, where it is installed, and one that merges greedily."""

from collections.abc import Callable
from functools import cache

import pytest

from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import ModelError
from ramet.runtime.weights.discover import find_default_model
from ramet.runtime.weights.gguf_source import GgufSource

WORDS = [*map(str.encode, ["true", "false", "null", "name", "age", "yes", "no", '":', '",', '"}', '{"', '"name'])]


def byte_vocabulary() -> Vocabulary:
    """All bytes, a few words, two special tokens. Ids of single bytes are their values."""
    tokens = [bytes([b]) for b in range(256)] + WORDS + [b"<call>", b"<end>"]
    longest_first = sorted(range(len(tokens) - 2), key=lambda i: -len(tokens[i]))

    def encode(text: str) -> list[int]:
        data, found = text.encode(), []
        while data:
            token = next(i for i in longest_first if data.startswith(tokens[i]))
            found.append(token)
            data = data[len(tokens[token]) :]
        return found

    special = {"<call>": len(tokens) - 2, "<end>": len(tokens) - 1}
    return Vocabulary(tokens, special=special, end_ids=[special["<end>"]], size=len(tokens) + 10, encode=encode)


@cache
def model_vocabulary() -> tuple[Vocabulary, Callable[[str], list[int]]]:
    """The embedded model's vocabulary and its encoder; skips the test where the model is not installed."""
    try:
        path = find_default_model()
    except ModelError:
        pytest.skip("the embedded model is not installed")
    tokenizer = GgufSource(path).tokenizer()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return vocabulary, lambda text: tokenizer.encode(text, follows="text")
