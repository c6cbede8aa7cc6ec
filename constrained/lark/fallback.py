"""Grammars that lark can't make LALR(1) tables of, run by llguidance (`pip install 'ramet[llguidance]'`).

Its dialect of Lark has Earley's languages, `%json`, `%regex`, `&` and `~`, and special tokens in angle brackets. Its
lexer may divide a text otherwise than lark's Earley does; the ledger says which engine enforces a grammar. A place in
the output is a matcher; reading a byte copies it, so old states stay good. Masks cost a walk in llguidance each.
"""

import importlib.util
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramet.constrained.automaton.machine import Configuration
from ramet.constrained.grammar import CompiledGrammar
from ramet.constrained.ledger import LedgerEntry
from ramet.constrained.state import GrammarState
from ramet.constrained.vocabulary import Vocabulary, Words
from ramet.runtime.errors import GrammarRefused


@dataclass(frozen=True)
class Elsewhere:
    """A grammar that another engine has checked and will run."""

    text: str
    reason: str
    """Why lark's tables could not."""


def elsewhere(grammar: str, start: str, refusal: GrammarRefused) -> Elsewhere:
    """The grammar as llguidance's; raises lark's refusal where it isn't installed or takes it no more than lark."""
    if not is_installed() or start != "start":
        raise refusal
    library = _library()
    complaint = library.LLMatcher.validate_grammar(library.LLMatcher.grammar_from_lark(grammar))
    if complaint:
        raise GrammarRefused(
            expected=f"{refusal.expected}, or one that llguidance takes",
            got=f"{refusal.got}; llguidance: {' '.join(complaint.split())[:300]}",
            at="$.grammar",
            hint=refusal.hint,
            code=refusal.code,
        )
    return Elsewhere(grammar, " ".join(str(refusal.got).split())[:200])


def is_installed() -> bool:
    """Whether the extra is there."""
    return importlib.util.find_spec("llguidance") is not None


def _library() -> Any:
    import llguidance

    return llguidance


class PlainTokenizer:
    """What llguidance wants to know of a tokenizer."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id, self.bos_token_id = vocabulary.end_ids[0], None
        self.tokens = [
            data if i not in vocabulary.special_ids else b"" for i, data in enumerate(vocabulary.token_bytes)
        ]
        for text, token in vocabulary.special.items():
            self.tokens[token] = b"\xff" + text.encode()  # its mark of a token that is no text
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._encode, self._ids = vocabulary.encode, vocabulary.id_of_bytes

    def __call__(self, text: Any) -> list[int]:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        if self._encode is not None:
            return self._encode(plain)
        return [self._ids[bytes([byte])] for byte in plain.encode() if bytes([byte]) in self._ids]


def tokenizer_of(vocabulary: Vocabulary) -> Any:
    """llguidance's form of a vocabulary, one each."""
    if PlainTokenizer not in vocabulary.kept:
        library = _library()
        wrapper = library.TokenizerWrapper(PlainTokenizer(vocabulary))
        vocabulary.kept[PlainTokenizer] = library.LLTokenizer(wrapper, n_vocab=vocabulary.size)
    return vocabulary.kept[PlainTokenizer]


class _Place:
    """One matcher, with what it answered. Children are remembered as long as some state holds them."""

    __slots__ = ("__weakref__", "after", "matcher", "words")

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self.words: Words | None = None
        self.after: weakref.WeakValueDictionary[int, _Place] = weakref.WeakValueDictionary()


class MatcherReader:
    """Reads bytes through matchers. See `grammar.Reader`. A configuration's stack holds the place."""

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        library, self.vocabulary, self.lock = _library(), vocabulary, threading.Lock()
        form = library.LLMatcher.grammar_from_lark(text)
        self.start = _Place(library.LLMatcher(tokenizer_of(vocabulary), form, log_level=0))
        if self.start.matcher.is_error():
            raise GrammarRefused(
                expected="a grammar that llguidance takes",
                got=" ".join(self.start.matcher.get_error().split())[:300],
                at="$.grammar",
                code="invalid_grammar",
            )

    def read(self, configurations: Sequence[Configuration], byte: int, position: int) -> tuple[Configuration, ...]:
        """After one more byte; dead where the vocabulary has no token for it alone."""
        token = self.vocabulary.id_of_bytes.get(bytes([byte]))
        return () if token is None else self._taken(configurations, token)

    def read_special(
        self, configurations: Sequence[Configuration], token: int, position: int
    ) -> tuple[Configuration, ...]:
        """After a special token that the grammar names."""
        return () if token in self.vocabulary.end_id_set else self._taken(configurations, token)

    def _taken(self, configurations: Sequence[Configuration], token: int) -> tuple[Configuration, ...]:
        with self.lock:
            found = [self._after(_place(configuration), token) for configuration in configurations]
        return tuple(at(place) for place in found if place is not None)

    def _after(self, place: _Place, token: int) -> _Place | None:
        known = place.after.get(token)
        if known is None and place.matcher.validate_tokens([token]) == 1:
            matcher = place.matcher.deep_copy()
            if matcher.consume_token(token):
                known = place.after[token] = _Place(matcher)
        return known

    def words(self, place: _Place) -> Words:
        """The tokens that may come, without end tokens."""
        with self.lock:
            if place.words is None:
                found = np.frombuffer(place.matcher.compute_bitmask(), dtype=np.int32)
                place.words = found[: self.vocabulary.num_words] & ~self.vocabulary.pack(self.vocabulary.end_ids)
            return place.words

    def accepting(self, configurations: Sequence[Configuration], position: int) -> Configuration | None:
        """A configuration in which the output may end."""
        with self.lock:
            return next((c for c in configurations if _place(c).matcher.is_accepting()), None)

    def next_bytes(self, configurations: Sequence[Configuration], position: int) -> set[int]:
        """First bytes of the allowed tokens."""
        tokens = (t for c in configurations for t in self.vocabulary.unpack(self.words(_place(c))).tolist())
        special = self.vocabulary.special_ids
        return {-1 if token in special else self.vocabulary.token_bytes[token][0] for token in tokens}

    def is_finished(self, configurations: Sequence[Configuration]) -> bool:
        """Whether nothing may follow."""
        return not any(self.words(_place(c)).any() for c in configurations)


def at(place: _Place) -> Configuration:
    """The configuration that stands there."""
    stack: Any = (0, 0, place)
    return Configuration(0, 0, stack, None)


def _place(configuration: Configuration) -> _Place:
    stack: Any = configuration.stack
    place: _Place = stack[2]
    return place


class MatcherGrammar(CompiledGrammar):
    """A grammar that llguidance runs."""

    def __init__(self, grammar: Elsewhere, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, vocabulary.pack(vocabulary.end_ids), {})
        self._reader = MatcherReader(vocabulary, grammar.text)
        reason = f"enforced by llguidance in its dialect of Lark, since lark makes no LALR(1) tables ({grammar.reason})"
        self.ledger = (LedgerEntry(pointer="$.grammar", keyword="<grammar>", status="exact", reason=reason),)

    @property
    def machine(self) -> MatcherReader:
        return self._reader

    def initial(self) -> GrammarState:
        return GrammarState(self, (at(self._reader.start),))

    def allow(self, configuration: Configuration, out: Words) -> None:
        """What llguidance allows."""
        np.bitwise_or(out, self._reader.words(_place(configuration)), out=out)

    def forced(self, state: GrammarState) -> list[int]:
        """No drafts: the matchers that they would be remembered by are large."""
        return []
