"""Text that a branch was given and has not tokenised yet. Knows the tokenizer's face and no branch.

Literals between two generations are joined first and tokenised once, because "The an" + "swer" has other ids than its
parts. A literal is one guarded text: special tokens that count stand in it as they are; those that are plain text have
GUARD inside their name. Forks share the literal object, and with it its ids; what a fork adds is tokenised from the
last safe border of the shared part.
"""

from collections.abc import MutableMapping, Sequence
from typing import Literal as OneOf
from typing import Protocol

from ramet.runtime.chat_template import GUARD
from ramet.runtime.tokenizer import Tail

Follows = OneOf["nothing", "special", "text"]


class TextCodec(Protocol):
    """What the runtime asks of a tokenizer: `runtime.tokenizer.Tokenizer`, or `ramet.testing.ByteTokenizer`."""

    bos_id: int | None
    eos_id: int | None
    adds_bos: bool
    end_ids: tuple[int, ...]
    special_ids: frozenset[int]
    vocabulary_size: int

    @property
    def special_names(self) -> tuple[str, ...]: ...
    @property
    def all_token_bytes(self) -> Sequence[bytes]: ...
    def encode(
        self, text: str, *, allow_special: bool = False, add_bos: bool = False, follows: Follows = "nothing"
    ) -> list[int]: ...
    def encode_guarded(
        self, text: str, memo: MutableMapping[tuple[str, str], list[int]] | None = None
    ) -> list[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...
    def special_text(self, token_id: int | None) -> str: ...
    def incremental_tail_encode(
        self, text: str, tokens: Sequence[int], addition: str, *, allow_special: bool = False
    ) -> Tail: ...


class Pending:
    """A guarded text that waits, immutable but for the ids that it remembers once they are known."""

    __slots__ = ("_base", "_ids", "add_bos", "follows", "text")

    def __init__(
        self, text: str = "", *, follows: Follows = "nothing", add_bos: bool = False, base: "Pending | None" = None
    ) -> None:
        """`follows`  what stands before it on the branch
        `add_bos`   the model wants its begin token before plain text, and this begins one
        `base`      a leading part whose ids are shared with others"""
        self.text, self.follows, self.add_bos = text, follows, add_bos
        self._base = base
        self._ids: Sequence[int] | None = None if text else ()

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def plain_text(self) -> str:
        """Without guards."""
        return self.text.replace(GUARD, "")

    def with_text(self, addition: str) -> "Pending":
        """This and a guarded text after it."""
        return Pending(self.text + addition, follows=self.follows, add_bos=self.add_bos, base=self._base)

    def cut(self, num_characters: int) -> "Pending":
        """The first characters alone."""
        return Pending(self.text[:num_characters], follows=self.follows, add_bos=self.add_bos)

    def shared(self) -> "Pending":
        """This, to be continued by several: its ids, once one of them needs them, are there for all."""
        return Pending(self.text, follows=self.follows, add_bos=self.add_bos, base=self) if self.text else self

    def ids(self, codec: TextCodec) -> Sequence[int]:
        """Tokenised, once."""
        if self._ids is None:
            self._ids = self._encode(codec)
        return self._ids

    def _encode(self, codec: TextCodec) -> Sequence[int]:
        base = self._base
        if base is not None and GUARD not in self.text:
            known = base.ids(codec)
            addition = self.text[len(base.text) :]
            if not addition:
                return known
            tail = codec.incremental_tail_encode(base.text, known, addition, allow_special=True)
            if tail.num_kept:
                return [*known[: tail.num_kept], *tail.tokens]
        return encode(codec, self.text, follows=self.follows, add_bos=self.add_bos)


def encode(codec: TextCodec, text: str, *, follows: Follows = "nothing", add_bos: bool = False) -> list[int]:
    """Ids of a guarded text."""
    if GUARD not in text:
        return codec.encode(text, allow_special=True, add_bos=add_bos, follows=follows)
    ids = codec.encode_guarded(text)
    if add_bos and codec.bos_id is not None and ids[:1] != [codec.bos_id]:
        ids.insert(0, codec.bos_id)
    return ids


def guard(text: str, special_names: Sequence[str]) -> str:
    """`text` such that no special token in it counts."""
    clean = text.replace(GUARD, "\ufffd")
    for name in special_names:
        if name in clean:
            clean = clean.replace(name, name[0] + GUARD + name[1:])
    return clean
