"""Where a sequence stands in its grammar. Small and immutable: a snapshot is the state itself, rollback is keeping it.

`advance` gives the next state, `mask` writes the allowed tokens, `forced` says what must come. The state knows tokens
and bytes; that they mean JSON or Lark is not its business. A fork shares everything.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ramet.constrained.automaton.machine import Configuration, Event, Log
from ramet.constrained.closing import num_tokens
from ramet.constrained.vocabulary import Words

if TYPE_CHECKING:
    from ramet.constrained.grammar import CompiledGrammar


@dataclass(frozen=True, slots=True)
class GrammarState:
    """One sequence's place in `grammar`."""

    grammar: "CompiledGrammar"
    configurations: tuple[Configuration, ...]
    """Every reading of the output so far. Empty: a token came that the mask had forbidden, or the end was taken."""
    num_bytes: int = 0
    """Bytes of the output so far."""
    ended: bool = False
    """An end token was taken where the grammar allows the end."""

    # Moving ----------------------------------------------------------------------------------------------------------

    def advance(self, token: int) -> "GrammarState":
        """The state after one more token. A forbidden token gives a dead state, which allows nothing; never raises.
        Once the output has ended, it stays so."""
        if self.ended:
            return self
        vocabulary = self.grammar.vocabulary
        if token in vocabulary.end_id_set and not self._is_referred(token):
            return replace(self, configurations=(), ended=self.accepting)
        if token in vocabulary.special_ids:
            return self._advance_special(token)
        data = vocabulary.token_bytes[token] if 0 <= token < len(vocabulary.token_bytes) else b""
        return self.advance_bytes(data) if data else replace(self, configurations=())

    def advance_bytes(self, data: bytes) -> "GrammarState":
        """The state after these bytes, however they are cut into tokens."""
        machine, configurations, position = self.grammar.machine, self.configurations, self.num_bytes
        for byte in data:
            configurations = machine.read(configurations, byte, position)
            position += 1
            if not configurations:
                break
        return replace(self, configurations=configurations, num_bytes=position)

    def _advance_special(self, token: int) -> "GrammarState":
        configurations = self.grammar.machine.read_special(self.configurations, token, self.num_bytes)
        return replace(self, configurations=configurations)

    def _is_referred(self, token: int) -> bool:
        """Whether the grammar itself wants this end token here (`<|im_end|>` as part of a format)."""
        return bool(self.grammar.machine.read_special(self.configurations, token, self.num_bytes))

    # Asking ----------------------------------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Whether the output may end here."""
        return self.ended or self.grammar.machine.accepting(self.configurations, self.num_bytes) is not None

    @property
    def done(self) -> bool:
        """Whether only the end may come (or has come)."""
        return self.ended or (bool(self.configurations) and self.grammar.machine.is_finished(self.configurations))

    @property
    def is_dead(self) -> bool:
        """Whether a forbidden token was taken. The sequence must fail; it can't go on unconstrained."""
        return not self.configurations and not self.ended

    def mask(self, out: Words) -> None:
        """Write the allowed tokens: int32 [ceil(V / 32)], bit j of word w, lowest first, is token 32 * w + j.

        End ids are allowed exactly where the output may end. Once it has ended only end ids are, so that a padded
        step has something to sample; in a dead state nothing is.
        """
        self.grammar.write_mask(self, out)

    def allowed(self) -> list[int]:
        """The ids of the mask, ascending; for tests and logs."""
        words = np.zeros(self.grammar.vocabulary.num_words, dtype=np.int32)
        self.mask(words)
        found: list[int] = self.grammar.vocabulary.unpack(words).tolist()
        return found

    def forced(self) -> list[int]:
        """Ids that must come next, canonically tokenised, as drafts to verify; empty where there is a choice."""
        return self.grammar.forced(self)

    def min_tokens_to_accept(self) -> int | None:
        """Tokens of a short legal completion, 0 where the output may end; None where none is known (very large
        grammars, Lark). With more tokens left than that, the output can still be brought to a legal end."""
        closing = self.grammar.closing(self)
        return None if closing is None else num_tokens(self, closing)

    def events(self) -> list[Event]:
        """Begins and ends of tagged parts, oldest first. An end is known once a byte after it is read, or at once
        where nothing else may follow, or in an accepting state."""
        machine = self.grammar.machine
        here = machine.accepting(self.configurations, self.num_bytes)
        if here is None and self.configurations:
            here = self.configurations[0]
        return _listed(None if here is None else here.log)


def _listed(log: Log) -> list[Event]:
    found: list[Event] = []
    while log is not None:
        event, log = log
        found.append(event)
    return found[::-1]
