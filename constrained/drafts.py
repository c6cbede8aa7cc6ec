"""Forced tokens: what the grammar leaves no choice about, in the spelling that the tokenizer itself would choose.

They are drafts, never injected: the model verifies them under the mask, so the distribution stays as it is even where
several tokenisations of the forced text are legal. The last tokens are dropped as long as a longer token could begin
at their place and still be legal: forcing `"` where `",` may come would force another tokenisation than the model's.
"""

from typing import TYPE_CHECKING

import numpy as np

from ramet.constrained.automaton.machine import Configuration

if TYPE_CHECKING:
    from ramet.constrained.grammar import Reader
    from ramet.constrained.state import GrammarState

MAX_FORCED_BYTES = 256
MAX_TOKENS = 32
_LOOK_BACK = 4
"""Tokens at the end that may be dropped."""
_MAX_TRIED = 8
"""Next bytes that are tried when counters may exclude all but one."""


def forced_tokens(state: "GrammarState") -> list[int]:
    """The ids that must come next, at most MAX_TOKENS; empty where there is a choice or the output may end."""
    vocabulary = state.grammar.vocabulary
    data = forced_bytes(state)
    text = data.decode(errors="ignore")
    if not text or vocabulary.encode is None:
        return _only_token(state)
    tokens = vocabulary.encode(text)[:MAX_TOKENS]
    if b"".join(vocabulary.token_bytes[t] for t in tokens) != text.encode()[: _length(state, tokens)]:
        return _only_token(state)  # the tokenizer changes the text (a prefix space, a normal form)
    states = [state]
    for token in tokens:
        states.append(states[-1].advance(token))
    kept = len(tokens) if states[-1].done else _settled(states, tokens)
    return tokens[:kept] or _only_token(state)


def _length(state: "GrammarState", tokens: list[int]) -> int:
    return sum(len(state.grammar.vocabulary.token_bytes[token]) for token in tokens)


def _settled(states: "list[GrammarState]", tokens: list[int]) -> int:
    """How many tokens no longer legal token could replace."""
    vocabulary = states[0].grammar.vocabulary
    for kept in range(max(0, len(tokens) - _LOOK_BACK), len(tokens)):
        tail = b"".join(vocabulary.token_bytes[token] for token in tokens[kept:])
        if _may_grow(states[kept], tail):
            return kept
    return len(tokens)


def _may_grow(state: "GrammarState", tail: bytes) -> bool:
    """Whether a legal token begins with `tail` and goes on."""
    vocabulary, trie = state.grammar.vocabulary, state.grammar.vocabulary.trie
    node = trie.find(tail)
    if node < 0 or trie.end[node] == node + 1:
        return False
    first, last = trie.token_offset[node + 1], trie.token_offset[trie.end[node]]
    longer = trie.token_ids[first:last]
    words = np.zeros(vocabulary.num_words, dtype=np.int32)
    state.mask(words)
    return bool(((words[longer >> 5] >> (longer & 31)) & 1).any())


def _only_token(state: "GrammarState") -> list[int]:
    """The one allowed token, if there is just one."""
    if state.accepting or not state.configurations:
        return []
    words = np.zeros(state.grammar.vocabulary.num_words, dtype=np.int32)
    state.mask(words)
    if int(np.bitwise_count(words.view(np.uint32)).sum()) != 1:
        return []
    return [int(token) for token in state.grammar.vocabulary.unpack(words)]


def forced_bytes(state: "GrammarState") -> bytes:
    """The longest byte string that every legal output goes on with, up to a limit."""
    machine, configurations, position = state.grammar.machine, state.configurations, state.num_bytes
    found = bytearray()
    while configurations and len(found) < MAX_FORCED_BYTES:
        following = _only_step(machine, configurations, position)
        if following is None:
            break
        byte, configurations = following
        found.append(byte)
        position += 1
    return bytes(found)


def _only_step(
    machine: "Reader", configurations: tuple[Configuration, ...], position: int
) -> tuple[int, tuple[Configuration, ...]] | None:
    """The only byte that may come, and where it leads; None if the output may end, or more may come."""
    if machine.accepting(configurations, position) is not None:
        return None
    candidates = machine.next_bytes(configurations, position)
    if len(candidates) > _MAX_TRIED:
        return None
    if -1 in candidates:
        return None  # a special token is a choice
    steps = [(byte, after) for byte in candidates if (after := machine.read(configurations, byte, position))]
    return steps[0] if len(steps) == 1 else None
