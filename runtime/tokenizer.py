"""Text to token ids and back, with the bytes of every id. A leaf: knows no model, no template and no engine.

Wraps a `tokenizers.Tokenizer`. Four things are added to it:
1. Special tokens inside text are plain text unless the caller allows them, so that a user can't write `<|im_end|>` into
   a conversation. Several encoders over one model: those that see special tokens, those that don't.
2. A text may say what it follows: SentencePiece vocabularies put a space before a text, but not in the middle of one.
3. The bytes of each id, exactly: what a grammar and an incremental decoder work with. GPT-2's byte alphabet,
   SentencePiece's U+2581 and `<0x0A>` pieces end in the same table.
4. `incremental_tail_encode`: a long text that grows is tokenised from its last safe border only, with the same result
   as from the start. Why a border is safe is said at `_last_safe_border`.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal, NamedTuple

from tokenizers import AddedToken, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

Before = Literal["nothing", "special", "text"]
"""What stands before a text: its start, a special token, or more text."""

_GUARD = "\ufdd0"
"""`chat_template.GUARD`; both are leaves, and a test holds the two together."""

_SPACE_MARK = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

END_OF_TURN_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
)
"""Special tokens that end a turn in some family; a generation stops at those that the vocabulary has."""

_LOCAL_NORMALIZERS = {None, "Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Replace", "Prepend"}
"""What these make of a text is what they make of its parts, cut at a space between words (None: a pattern's own)."""

_WORD_THEN_SPACE = re.compile(rb"\S ")

_SHORTEST_SAVING = 256
"""Characters before which tokenising from the start is as cheap as looking for a border."""


class Tail(NamedTuple):
    """encode(old + addition) == old_tokens[:num_kept] + tokens."""

    num_kept: int
    tokens: list[int]


class Tokenizer:
    """A vocabulary with both directions. Immutable; safe to use from several threads."""

    def __init__(
        self,
        raw: RawTokenizer,
        *,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        adds_bos: bool = False,
    ) -> None:
        """raw       the tokenizer; its truncation, padding and post-processor are not used
        bos_id    id that begins a text, where the model has one
        eos_ids   ids that end a generation; those of END_OF_TURN_TOKENS in the vocabulary are added
        adds_bos  whether the model was trained with `bos_id` before plain text
        """
        raw.no_truncation()
        raw.no_padding()
        self._raw = raw
        self._added: dict[int, AddedToken] = raw.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(i for i, token in self._added.items() if token.special)
        """Control tokens: never printed, never made from plain text."""
        self.bos_id, self.adds_bos = bos_id, adds_bos and bos_id is not None
        known_ends = (raw.token_to_id(text) for text in END_OF_TURN_TOKENS)
        extra = {i for i in known_ends if i is not None and i in self.special_ids}
        self.end_ids: tuple[int, ...] = tuple(sorted({*eos_ids} | extra))
        """A generation stops at any of these."""
        self.eos_id: int | None = next(iter(eos_ids), None) if isinstance(eos_ids, Sequence) else None
        """The first of the given `eos_ids`: what templates call eos_token."""
        self.vocabulary_size: int = max(raw.get_vocab_size(with_added_tokens=True), 1 + max(self._added, default=-1))
        """Ids lie in [0, vocabulary_size)."""

    # ---- across a process border

    def to_bytes(self) -> bytes:
        """Everything that `from_bytes` needs in another process."""
        settings = {
            "bos_id": self.bos_id,
            "eos_ids": [self.eos_id, *self.end_ids] if self.eos_id is not None else list(self.end_ids),
            "adds_bos": self.adds_bos,
        }
        return json.dumps([settings, self._raw.to_str()], ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Tokenizer":
        """The tokenizer that `to_bytes` wrote."""
        settings, raw = json.loads(data)
        return cls(RawTokenizer.from_str(raw), **settings)

    # ---- text -> ids

    def encode(
        self, text: str, *, allow_special: bool = False, add_bos: bool = False, follows: Before = "nothing"
    ) -> list[int]:
        """Ids of `text`. Lone surrogates become U+FFFD.

        allow_special  special tokens written in the text count as such
        add_bos        put the begin token first, unless the ids begin with it already
        follows        what stands before the text; only vocabularies that put a space before a text look at it
        """
        text = _sound(text)
        cut = self._first_added(text, allow_special) if follows == "text" and self._puts_space_after_special else None
        if cut is None:
            ids = self._ids(self._encoder(allow_special, follows), text)
        else:  # the space is missing at the start only: what follows an added token has it
            head = _stripped(text[: cut.start()], None, self._added_of[cut[0]])
            ids = self._ids(self._encoder(allow_special, "text"), head)
            ids += self._ids(self._encoder(allow_special, "nothing"), text[cut.start() :])
        if add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def encode_batch(self, texts: Sequence[str], *, allow_special: bool = False) -> list[list[int]]:
        """`encode` of each, in parallel."""
        encoder = self._encoder(allow_special, "nothing")
        found = encoder.encode_batch_fast([_sound(text) for text in texts], add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_guarded(self, text: str, memo: MutableMapping[tuple[str, str], list[int]] | None = None) -> list[int]:
        """Ids of a rendered template: special tokens count, but those with `chat_template.GUARD` inside are plain text
        (without the guard). Equals `encode(text, allow_special=True)` where there is no guard.

        memo  remembers the ids of what stands between two special tokens, which tokenises by itself: with one, a
              history that grows costs its new turns only
        """
        if memo is None and _GUARD not in text:
            return self.encode(text, allow_special=True)
        ids: list[int] = []
        before: AddedToken | None = None
        pieces = self._special_pattern.split(text)  # text, special, text, special, ..., text
        for place, piece in enumerate(pieces):
            after = self._special_of.get(pieces[place + 1]) if place + 1 < len(pieces) else None
            if place % 2:
                before = self._special_of[piece]
                ids.append(self._id_of_special[piece])
            elif piece := _stripped(piece, before, after):
                ids += self._remembered(piece, "nothing" if before is None else "special", memo)
        return ids

    def _remembered(
        self, piece: str, follows: Before, memo: MutableMapping[tuple[str, str], list[int]] | None
    ) -> list[int]:
        known = None if memo is None else memo.get((piece, follows))
        if known is None:
            known = self.encode(piece.replace(_GUARD, ""), follows=follows)
            if memo is not None:
                memo[piece, follows] = known
        return known

    @functools.cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        return _any_of(self.special_names)

    @functools.cached_property
    def _special_of(self) -> dict[str, AddedToken]:
        return {self._added[i].content: self._added[i] for i in self.special_ids}

    @functools.cached_property
    def _id_of_special(self) -> dict[str, int]:
        return {self._added[i].content: i for i in self.special_ids}

    @staticmethod
    def _ids(encoder: RawTokenizer, text: str) -> list[int]:
        return list(encoder.encode(text, add_special_tokens=False).ids)

    def _first_added(self, text: str, allow_special: bool) -> re.Match[str] | None:
        """Where the first added token stands that counts; None where none does."""
        found = self._added_pattern.search(text)
        while found is not None and not allow_special and self._added_of[found[0]].special:
            found = self._added_pattern.search(text, found.start() + 1)
        return found

    @functools.cached_property
    def _added_pattern(self) -> re.Pattern[str]:
        return _any_of(token.content for token in self._added.values())

    @functools.cached_property
    def _added_of(self) -> dict[str, AddedToken]:
        return {token.content: token for token in self._added.values()}

    def _encoder(self, allow_special: bool, follows: Before) -> RawTokenizer:
        puts_space = follows == "nothing" or (follows == "special" and self._puts_space_after_special)
        if allow_special and puts_space:
            return self._raw
        if not puts_space:
            return self._special_without_space if allow_special else self._plain_without_space
        return self._plain

    @functools.cached_property
    def _plain(self) -> RawTokenizer:
        return self._variant(special=False, space=True)

    @functools.cached_property
    def _plain_without_space(self) -> RawTokenizer:
        return self._variant(special=False, space=False) if self._puts_space else self._plain

    @functools.cached_property
    def _special_without_space(self) -> RawTokenizer:
        return self._variant(special=True, space=False) if self._puts_space else self._raw

    def _variant(self, *, special: bool, space: bool) -> RawTokenizer:
        """The same model, blind to special tokens or without the leading space. Shares the vocabulary; only the added
        tokens are entered again."""
        variant = RawTokenizer(self._raw.model)
        change = _same if space else _without_leading_space
        if self._raw.normalizer is not None:
            variant.normalizer = _rebuilt(normalizers.Sequence([]), change(_settings(self._raw.normalizer)))
        if self._raw.pre_tokenizer is not None:
            variant.pre_tokenizer = _rebuilt(pre_tokenizers.Sequence([]), change(_settings(self._raw.pre_tokenizer)))
        add_tokens_in_id_order(variant, self._added)
        variant.encode_special_tokens = not special
        return variant

    @functools.cached_property
    def _puts_space(self) -> bool:
        """Whether a space is put before a text."""
        return self._leading_space != "never"

    @functools.cached_property
    def _puts_space_after_special(self) -> bool:
        """Older SentencePiece settings put it after each special token, newer ones at the start only."""
        return self._leading_space == "always"

    @functools.cached_property
    def _leading_space(self) -> Literal["never", "first", "always"]:
        parts = (part for part in (self._raw.normalizer, self._raw.pre_tokenizer) if part is not None)
        schemes = {_leading_space(part) for part in _all_parts([_settings(part) for part in parts])}
        return "always" if "always" in schemes else "first" if "first" in schemes else "never"

    # ---- ids -> text

    def decode(self, ids: Sequence[int], *, skip_special: bool = True, follows: Before = "text") -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD. Unknown ids raise IndexError.

        follows  "nothing": ids are of a whole text, and the space that `encode` put before it is taken off
        """
        kept = (i for i in ids if not (skip_special and i in self.special_ids))
        text = b"".join(self._bytes[i] for i in kept).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if follows == "nothing" and self._puts_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this id adds to a text; a special token's are its name. b"" for ids that stand for nothing."""
        return self._bytes[token_id]

    @property
    def all_token_bytes(self) -> Sequence[bytes]:
        """`token_bytes` of every id, by id."""
        return self._bytes

    def token_id(self, token: str) -> int | None:
        """Id of a token by its name in the vocabulary (`<|im_end|>`)."""
        return self._raw.token_to_id(token)

    def special_text(self, token_id: int | None) -> str:
        """How a template names the token; "" for None."""
        return "" if token_id is None else str(self._raw.id_to_token(token_id) or "")

    @functools.cached_property
    def special_names(self) -> tuple[str, ...]:
        """The texts of all special tokens, longest first."""
        names = (self._added[i].content for i in self.special_ids)
        return tuple(sorted(names, key=len, reverse=True))

    @functools.cached_property
    def _bytes(self) -> tuple[bytes, ...]:
        vocabulary: dict[str, int] = self._raw.get_vocab(with_added_tokens=True)
        spell = _spell_byte_level if self._is_byte_level else _spell_sentencepiece
        table = [b""] * self.vocabulary_size
        for token, index in vocabulary.items():
            table[index] = token.encode() if index in self._added else spell(token)
        return tuple(table)

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        """Whether pieces are written in GPT-2's byte alphabet."""
        parts = [_settings(part) for part in (self._raw.decoder, self._raw.pre_tokenizer) if part is not None]
        return any(part.get("type") == "ByteLevel" for part in _all_parts(parts))

    # ---- a text that grows

    def incremental_tail_encode(
        self, text: str, tokens: Sequence[int], addition: str, *, allow_special: bool = False
    ) -> Tail:
        """Given tokens == encode(text), what encode(text + addition) is: how many of `tokens` stay, and what follows.

        Costs the addition plus a few words, not the whole text, except where no safe border is near.
        """
        border = self._last_safe_border(text) if len(text) >= _SHORTEST_SAVING else None
        if border is None:
            return Tail(0, self.encode(text + addition, allow_special=allow_special))
        num_redone = self._tokens_of_suffix(tokens, self._normalized(text[border:]).encode("utf-8", "replace"))
        if num_redone is None:
            return Tail(0, self.encode(text + addition, allow_special=allow_special))
        tail = self.encode(text[border:] + addition, allow_special=allow_special, follows="text")
        return Tail(len(tokens) - num_redone, tail)

    def _last_safe_border(self, text: str) -> int | None:
        """Index of a space at which tokenising may start afresh, whatever is appended to `text`; None: there is none.

            word| word

        The character before is not blank, so no token reaches over the border: patterns end a word there, and
        vocabularies with a piece like "a b" are ruled out by `_pieces_end_at_spaces`. Patterns look ahead by one
        character or one run of blanks, and what is after the border is not blank, so nothing before it saw the end of
        the text. An added token that the addition completes can begin before the text's end: the border stays clear of
        it by the longest one's length.
        """
        if not self._pieces_end_at_spaces:
            return None
        last = len(text) - self._longest_added - 4
        for index in range(last, max(0, last - 2000), -1):
            if text[index] == " " and not _is_blank(text[index - 1]) and not _is_blank(text[index + 1]):
                return index
        return None

    def _tokens_of_suffix(self, tokens: Sequence[int], suffix: bytes) -> int | None:
        """How many of the last tokens spell exactly `suffix`; None where none do (a vocabulary may lack some bytes)."""
        left, count = len(suffix), 0
        while left > 0 and count < len(tokens):
            count += 1
            left -= len(self._bytes[tokens[-count]])
        spelled = b"".join(self._bytes[token] for token in tokens[len(tokens) - count :])
        return count if spelled == suffix else None

    def _normalized(self, text: str) -> str:
        """As the pieces spell it: NFC may join characters; a written U+2581 is a blank to SentencePiece."""
        if not self._is_byte_level:
            return text.replace(_SPACE_MARK, " ")
        return text if self._raw.normalizer is None else str(self._raw.normalizer.normalize_str(text))

    @functools.cached_property
    def _longest_added(self) -> int:
        return max((len(token.content) for token in self._added.values()), default=0)

    @functools.cached_property
    def _pieces_end_at_spaces(self) -> bool:
        """Whether no token reaches over a space that follows a word. Byte-pair merges on one side of such a space then
        know nothing of the other side."""
        normalizer = self._raw.normalizer
        normal = [] if normalizer is None else [part.get("type") for part in _all_parts(_settings(normalizer))]
        if type(self._raw.model).__name__ != "BPE" or not _LOCAL_NORMALIZERS.issuperset(normal):
            return False
        return not any(_WORD_THEN_SPACE.search(piece) for piece in self._bytes)


def add_tokens_in_id_order(raw: RawTokenizer, added: dict[int, AddedToken]) -> None:
    """Enter added tokens so that each keeps its id: those new to the vocabulary are numbered in the order of entry."""
    for _, group in _runs_of_same_kind(sorted(added.items())):
        (raw.add_special_tokens if group[0].special else raw.add_tokens)(group)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of these names, as one group; nothing where there is none."""
    longest_first = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(f"({longest_first})" if longest_first else "(?!)")


def _is_blank(character: str) -> bool:
    return character.isspace() or character == _SPACE_MARK


def _stripped(text: str, before: AddedToken | None, after: AddedToken | None) -> str:
    """Some special tokens swallow the blanks beside them."""
    if before is not None and before.rstrip:
        text = text.lstrip()
    return text.rstrip() if after is not None and after.lstrip else text


def _runs_of_same_kind(items: list[tuple[int, AddedToken]]) -> list[tuple[bool, list[AddedToken]]]:
    runs: list[tuple[bool, list[AddedToken]]] = []
    for _, token in items:
        if not runs or runs[-1][0] != token.special:
            runs.append((token.special, []))
        runs[-1][1].append(token)
    return runs


def _settings(part: Any) -> Any:
    """A normalizer's, pre-tokenizer's or decoder's own JSON, as in tokenizer.json."""
    return json.loads(part.__getstate__())


def _rebuilt(part: Any, settings: Any) -> Any:
    """A part from its JSON; the class of `part` does not matter."""
    part.__setstate__(json.dumps(settings).encode())
    return part


def _all_parts(settings: Any) -> Iterator[dict[str, Any]]:
    """A part's settings and those of all parts in it."""
    if isinstance(settings, list):
        for item in settings:
            yield from _all_parts(item)
    elif isinstance(settings, dict):
        yield settings
        for value in settings.values():
            yield from _all_parts(value)


def _leading_space(part: Mapping[str, Any]) -> Literal["never", "first", "always"]:
    """When this part puts a space before a text."""
    match part.get("type"):
        case "Prepend":
            return "always"
        case "Metaspace":
            return part.get("prepend_scheme", "always")  # type: ignore[no-any-return]
        case "ByteLevel" if part.get("add_prefix_space"):
            return "always"
    return "never"


def _same(settings: Any) -> Any:
    return settings


def _without_leading_space(settings: Any) -> Any:
    """The same part, which puts no space before a text: no Prepend, Metaspace that never prepends."""
    if isinstance(settings, list):
        kept = (item for item in settings if not (isinstance(item, dict) and item.get("type") == "Prepend"))
        return [_without_leading_space(item) for item in kept]
    if not isinstance(settings, dict):
        return settings
    match settings.get("type"):
        case "Prepend":
            return {"type": "Sequence", "normalizers": []}
        case "Metaspace":
            return {**settings, "prepend_scheme": "never"}
        case "ByteLevel":
            return {**settings, "add_prefix_space": False}
    return {key: _without_leading_space(value) for key, value in settings.items()}


def _sound(text: str) -> str:
    """Lone surrogates have no UTF-8; the tokenizer would refuse the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: each byte as a printable character (Radford et al. 2019, `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + rank): byte for rank, byte in enumerate(others)})
    return alphabet


def _spell_byte_level(token: str) -> bytes:
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:  # not written in the alphabet: a name, not a piece
        return token.encode()


def _spell_sentencepiece(token: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE_MARK, " ").encode()
