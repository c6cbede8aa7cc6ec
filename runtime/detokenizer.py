"""Tokens to text while they come: whole characters only, nothing of a stop string. Knows no tokenizer and no engine.

One law: the streamed pieces, joined, are `detokenize(table, tokens)`, whatever the pushes were, cut at the first stop.

- Bytes go through Python's incremental UTF-8 decoder with "replace": an unfinished character waits, one that can no
  longer become valid is U+FFFD at once, and what is unfinished at the end is one U+FFFD.
- Characters go through an Aho-Corasick automaton of the stop strings. Its state is the longest suffix that may still
  grow into a stop: exactly that much is held back. The stop that is completed first wins; of several completed by the
  same character, the longest. So the cut depends on the text alone, never on where the tokens' edges were.
- A cut inside a token is reported as the number of whole tokens before it and the text left over between the two.
"""

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ramet.runtime.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """What a decoder needs of a tokenizer. Built once per model, shared by all decoders."""

    pieces: Sequence[bytes]
    """The bytes of every id, special tokens spelled out, a SentencePiece mark (U+2581) already a space. Ids past the
    end (a model's padding rows) have none."""
    special_ids: frozenset[int] = frozenset()
    """Left out of the text where `skip_special_tokens`."""
    strips_leading_space: bool = False
    """SentencePiece with a dummy prefix: the space before a text's first word is not text."""


class Cut(NamedTuple):
    """Where a stop string ended the text."""

    stop: str
    num_tokens: int
    """Pushed tokens that lie wholly before the cut, all their characters with them."""
    leftover: str
    """Text between the end of those tokens and the cut: what a split token leaves behind."""


class Decoded(NamedTuple):
    text: str
    """New text that is certain; may be empty."""
    cut: Cut | None = None
    """Set once, when a stop string is complete; pushes after it are refused."""


def detokenize(
    table: TokenTable, tokens: Sequence[int], *, skip_special_tokens: bool = True, at_text_start: bool = False
) -> str:
    """The whole text at once.

    >>> detokenize(TokenTable(pieces=[b"na", b"\\xc3", b"\\xaf", b"ve"]), [0, 1, 2, 3])
    'naïve'
    """
    pieces, size, skipped = table.pieces, len(table.pieces), table.special_ids if skip_special_tokens else frozenset()
    joined = b"".join(pieces[token] for token in tokens if token < size and token not in skipped)
    if at_text_start and table.strips_leading_space:
        joined = joined.removeprefix(b" ")
    return joined.decode("utf-8", "replace")


class StreamDecoder:
    """One generation's text. `push` tokens as they come, `finish` once at the end; neither is called after a cut."""

    def __init__(
        self,
        table: TokenTable,
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        at_text_start: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """`stops`: none of them empty. `at_text_start`: nothing, or only a begin token, stands before the first push.
        `min_tokens`: a stop completed by one of the first so many tokens does not count."""
        self._pieces, self._num_pieces = table.pieces, len(table.pieces)
        self._skipped = table.special_ids if skip_special_tokens else frozenset[int]()
        self._strip = at_text_start and table.strips_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = _automaton(tuple(stops)) if stops else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._node = 0
        self._text: list[str] = []  # all characters so far, held ones included; joined only at a cut
        self._num_chars = 0
        self._held = ""
        self._num_tokens = 0
        self._clean_ends = [(0, 0)]  # (tokens, characters) where a token ended and no character was unfinished
        self._is_cut = False

    @property
    def num_held(self) -> int:
        """Characters held back because a stop string may grow out of them."""
        return len(self._held)

    def push(self, tokens: Sequence[int]) -> Decoded:
        """Add tokens. O(new bytes). Tokens after the one that completes a stop are not looked at."""
        assert not self._is_cut, "push after a cut"
        if self._stops is None:
            self._num_tokens += len(tokens)
            return Decoded(self._decode(b"".join([self._piece(token) for token in tokens])))
        sent: list[str] = []
        for token in tokens:
            self._num_tokens += 1
            decoded = self._feed(self._decode(self._piece(token)), self._stops)
            sent.append(decoded.text)
            if decoded.cut is not None:
                return Decoded("".join(sent), decoded.cut)
            if not self._decoder.getstate()[0]:
                self._clean_ends.append((self._num_tokens, self._num_chars))
        return Decoded("".join(sent))

    def finish(self) -> Decoded:
        """Nothing more comes: an unfinished character is one U+FFFD, and held text is text."""
        assert not self._is_cut, "finish after a cut"
        last = self._decoder.decode(b"", True)
        if self._stops is None:
            return Decoded(last)
        decoded = self._feed(last, self._stops)
        if decoded.cut is not None:
            return decoded
        held, self._held, self._node = self._held, "", 0
        return Decoded(decoded.text + held)

    def _piece(self, token: int) -> bytes:
        return self._pieces[token] if token < self._num_pieces and token not in self._skipped else b""

    def _decode(self, piece: bytes) -> str:
        if self._strip and piece:
            self._strip = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def _feed(self, text: str, stops: "_StopAutomaton") -> Decoded:
        """Characters into the automaton; out comes what can no longer be part of a stop."""
        if not text or (self._node == 0 and stops.first_chars.isdisjoint(text)):  # the common step: no scan in Python
            self._text.append(text)
            self._num_chars += len(text)
            return Decoded(text)
        may_stop = self._num_tokens > self._min_tokens
        for offset, char in enumerate(text):
            self._node = stops.next_node(self._node, char)
            if may_stop and (stop := stops.completed[self._node]) is not None:
                return self._cut(stop, text, offset + 1)
        self._text.append(text)
        self._num_chars += len(text)
        window = self._held + text
        num_sent = len(window) - stops.num_held[self._node]
        self._held = window[num_sent:]
        return Decoded(window[:num_sent])

    def _cut(self, stop: str, text: str, stop_end: int) -> Decoded:
        """`stop` ends at text[:stop_end]. What was sent stays sent: nothing of a stop ever was."""
        self._is_cut = True
        cut = self._num_chars + stop_end - (0 if self._include_stop else len(stop))
        if not self._decoder.getstate()[0]:
            self._clean_ends.append((self._num_tokens, self._num_chars + len(text)))
        while self._clean_ends[-1][1] > cut:
            self._clean_ends.pop()
        num_tokens, num_chars = self._clean_ends[-1]
        window_start = self._num_chars - len(self._held)
        whole = "".join([*self._text, text])
        return Decoded(whole[window_start:cut], Cut(stop, num_tokens, whole[num_chars:cut]))


@dataclass(frozen=True, slots=True)
class _StopAutomaton:
    """Aho and Corasick (1975): one pass over the text finds all stops at once. Node 0 is the root."""

    children: list[dict[str, int]]
    suffix: list[int]
    """Node of the longest proper suffix that is also a node."""
    completed: list[str | None]
    """The longest stop that ends here."""
    num_held: list[int]
    """Length of the longest suffix that may still grow into a stop."""
    first_chars: frozenset[str]

    def next_node(self, node: int, char: str) -> int:
        children = self.children
        while (found := children[node].get(char)) is None:
            if node == 0:
                return 0
            node = self.suffix[node]
        return found


@lru_cache(maxsize=256)
def _automaton(stops: tuple[str, ...]) -> _StopAutomaton:
    if "" in stops:
        raise BadRequest(expected="stop strings that are not empty", got=list(stops), at="$.stop")
    children, completed, depth = _trie(stops)
    suffix, num_held = [0] * len(children), [0] * len(children)
    queue = deque([0])
    automaton = _StopAutomaton(children, suffix, completed, num_held, frozenset(stop[0] for stop in stops))
    while queue:  # in breadth, so that a node's suffix, being shorter, is known
        node = queue.popleft()
        for char, child in children[node].items():
            suffix[child] = automaton.next_node(suffix[node], char) if node else 0
            completed[child] = completed[child] or completed[suffix[child]]
            num_held[child] = depth[child] if children[child] else num_held[suffix[child]]
            queue.append(child)
    return automaton


def _trie(stops: tuple[str, ...]) -> tuple[list[dict[str, int]], list[str | None], list[int]]:
    children: list[dict[str, int]] = [{}]
    completed: list[str | None] = [None]
    depth = [0]
    for stop in stops:
        node = 0
        for char in stop:
            if char not in children[node]:
                children[node][char] = len(children)
                children.append({})
                completed.append(None)
                depth.append(depth[node] + 1)
            node = children[node][char]
        completed[node] = stop
    return children, completed, depth
