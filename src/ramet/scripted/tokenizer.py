"""A tokenizer without a vocabulary file: one id per byte, and three special tokens. The face of `runtime.tokenizer`."""

from collections.abc import MutableMapping, Sequence
from functools import cached_property
from typing import Literal

from ramet.runtime.chat_template import GUARD
from ramet.runtime.tokenizer import Tail

BOS, END, START = 256, 257, 258
_SPECIALS = {BOS: "<|bos|>", END: "<|im_end|>", START: "<|im_start|>"}

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The simplest chat template in wide use."""


class ByteTokenizer:
    """Ids 0 to 255 are bytes; 256 begins a text, 257 ends a turn, 258 starts one. Any text has exactly one encoding,
    and encodings of pieces add up.

    >>> ByteTokenizer().encode("hé")
    [104, 195, 169]
    >>> ByteTokenizer().encode("<|im_end|>", allow_special=True)
    [257]
    """

    bos_id: int | None = BOS
    eos_id: int | None = END
    adds_bos = False
    end_ids: tuple[int, ...] = (END,)
    special_ids: frozenset[int] = frozenset(_SPECIALS)
    vocabulary_size = 259
    chat_template = CHATML

    def encode(
        self,
        text: str,
        *,
        allow_special: bool = False,
        add_bos: bool = False,
        follows: Literal["nothing", "special", "text"] = "nothing",
    ) -> list[int]:
        ids = self._with_specials(text) if allow_special else list(text.encode("utf-8", "replace"))
        return [BOS, *ids] if add_bos and ids[:1] != [BOS] else ids

    def encode_guarded(self, text: str, memo: MutableMapping[tuple[str, str], list[int]] | None = None) -> list[int]:
        found = self._with_specials(text)
        guard = list(GUARD.encode())
        kept: list[int] = []
        for token in found:
            kept.append(token)
            if kept[-len(guard) :] == guard:
                del kept[-len(guard) :]
        return kept

    def encode_batch(self, texts: Sequence[str], *, allow_special: bool = False) -> list[list[int]]:
        return [self.encode(text, allow_special=allow_special) for text in texts]

    def _with_specials(self, text: str) -> list[int]:
        for token, name in _SPECIALS.items():
            before, found, after = text.partition(name)
            if found:
                return [*self._with_specials(before), token, *self._with_specials(after)]
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        kept = (token for token in ids if not (skip_special and token in _SPECIALS))
        return b"".join(self.all_token_bytes[token] for token in kept).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self.all_token_bytes[token_id]

    @cached_property
    def all_token_bytes(self) -> Sequence[bytes]:
        return (*(bytes([byte]) for byte in range(256)), *(name.encode() for name in _SPECIALS.values()))

    def token_id(self, token: str) -> int | None:
        return next((index for index, name in _SPECIALS.items() if name == token), None)

    def special_text(self, token_id: int | None) -> str:
        return "" if token_id is None else _SPECIALS.get(token_id, "")

    @property
    def special_names(self) -> tuple[str, ...]:
        return tuple(sorted(_SPECIALS.values(), key=len, reverse=True))

    def incremental_tail_encode(
        self, text: str, tokens: Sequence[int], addition: str, *, allow_special: bool = False
    ) -> Tail:
        if allow_special and "<" in text[-12:]:  # a special token's name may end in the addition
            return Tail(0, self.encode(text + addition, allow_special=True))
        return Tail(len(tokens), self.encode(addition, allow_special=allow_special))
