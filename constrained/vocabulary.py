"""What each token id is, to a grammar: bytes, a special token, or nothing.

Knows no grammar and no text. Every id below `size` is exactly one of
    text      raw bytes; ids with equal bytes are one node of the trie and share every mask bit
    special   a control token; it never matches characters, only an explicit reference by name or id
    nothing   empty bytes, holes and the padding between tokenizer and logits: always masked
End ids are a set, the union of all that are known, and are handled apart from both.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ramet.constrained.tables.trie import Trie, build_trie

Words = npt.NDArray[np.int32]
"""A packed mask: bit j of word w, lowest first, is token 32 * w + j."""


class TextTokenizer(Protocol):
    """The part of `runtime.tokenizer.Tokenizer` that a vocabulary is made of."""

    special_ids: frozenset[int]
    end_ids: tuple[int, ...]

    @property
    def all_token_bytes(self) -> Sequence[bytes]: ...

    def encode(self, text: str, *, allow_special: bool = ..., add_bos: bool = ..., follows: Any = ...) -> list[int]: ...

    def special_text(self, token_id: int | None) -> str: ...


class Vocabulary:
    """Immutable. Share one per tokenizer: compiled automata and masks are cached on it."""

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        special: Mapping[str, int] | None = None,
        end_ids: Collection[int] = (),
        size: int | None = None,
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        """token_bytes  by id; what stands at a special id does not matter
        special      text of each special token -> id
        end_ids      ids that end a generation: masked until a grammar accepts
        size         columns of the logits, at least len(token_bytes); the rest is padding (default: no padding)
        encode       text -> its canonical ids in the middle of a text; without it no multi-token drafts are made
        """
        self.token_bytes = tuple(token_bytes)
        self.special = dict(special or {})
        self.end_ids = tuple(sorted(set(end_ids)))
        self.size = len(self.token_bytes) if size is None else size
        self.encode = encode
        assert self.size >= len(self.token_bytes), "logits must have a column for every token"
        self.kept: dict[object, Any] = {}
        """What others remember by vocabulary. It lives as long as this object does, though it may refer to it."""
        self.end_id_set = frozenset(self.end_ids)
        excluded = set(self.special.values()) | set(self.end_ids)
        self.special_ids = frozenset(excluded)
        self._text = [(b, i) for i, b in enumerate(self.token_bytes) if b and i not in excluded]

    @classmethod
    def from_tokenizer(
        cls, tokenizer: TextTokenizer, *, size: int | None = None, more_end_ids: Iterable[int] = ()
    ) -> "Vocabulary":
        """The vocabulary of a tokenizer, for logits of `size` columns."""
        special = {tokenizer.special_text(i): i for i in sorted(tokenizer.special_ids)}
        return cls(
            tokenizer.all_token_bytes,
            special=special,
            end_ids={*tokenizer.end_ids, *more_end_ids},
            size=size,
            encode=lambda text: tokenizer.encode(text, follows="text"),
        )

    @property
    def num_words(self) -> int:
        """int32 words of a mask."""
        return -(-self.size // 32)

    @cached_property
    def trie(self) -> Trie:
        """Over text tokens only."""
        return build_trie(self._text)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest text token."""
        return max((len(data) for data, _ in self._text), default=0)

    @cached_property
    def missing_bytes(self) -> frozenset[int]:
        """Bytes of UTF-8 text that no text token holds: what needs one of them can't be written."""
        return frozenset((*range(0xC0), *range(0xC2, 0xF5))).difference(*(data for data, _ in self._text))

    @cached_property
    def id_of_bytes(self) -> dict[bytes, int]:
        """Bytes -> the smallest id of them."""
        return dict(sorted(self._text, key=lambda pair: -pair[1]))

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal vocabularies: the tokenizer's part of a cache key."""
        digest = hashlib.sha256()
        for data in self.token_bytes:
            digest.update(len(data).to_bytes(4, "little") + data)
        digest.update(repr((self.size, self.end_ids, sorted(self.special.items()))).encode())
        return digest.hexdigest()

    def pack(self, tokens: npt.NDArray[np.integer[Any]] | Sequence[int]) -> Words:
        """The mask with exactly these ids."""
        bits = np.zeros(self.num_words * 32, dtype=bool)
        bits[np.asarray(tokens, dtype=np.int64)] = True
        return np.packbits(bits, bitorder="little").view(np.int32)

    def unpack(self, words: Words) -> npt.NDArray[np.int64]:
        """The ids of a mask, ascending."""
        return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
