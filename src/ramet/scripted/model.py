"""Models without weights: logits as a pure function of the tokens before. Knows no pages and no sampling.

Because the logits depend on every token before them and on nothing else, two engines that disagree about a token prove
that one of them read the wrong page.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ramet.radix.key import Tokens, prefix_hash
from ramet.scripted.tokenizer import END, ByteTokenizer

Logits = NDArray[np.float32]
"""float32 [V]"""

_SURE = 30.0
"""Logit of the scripted next token, the others being 0: its probability is 1 to twelve digits."""


class Prefix:
    """What a model sees where it predicts the next token."""

    __slots__ = ("num_prompt", "tokens", "turn")

    def __init__(self, tokens: Tokens, num_prompt: int, turn: int) -> None:
        self.tokens = tokens
        """int32 [n]  prompt and output so far"""
        self.num_prompt = num_prompt
        self.turn = turn
        """How many generations and selects began before this one."""


@runtime_checkable
class Model(Protocol):
    """What a scripted executor runs."""

    @property
    def vocabulary_size(self) -> int: ...
    def logits(self, prefix: Prefix) -> Logits: ...


class ScriptedModel:
    """Logits given by a function, or made up from a seed, or such that given replies come out.

    >>> model = ScriptedModel.seeded(0)
    >>> model = ScriptedModel.replying({"capital of France": "Paris"})
    >>> model = ScriptedModel.replying(["first answer", "second answer"])
    """

    def __init__(
        self, logits: Callable[[Prefix], Logits], vocabulary_size: int = ByteTokenizer.vocabulary_size
    ) -> None:
        self._logits, self.vocabulary_size = logits, vocabulary_size

    def logits(self, prefix: Prefix) -> Logits:
        return self._logits(prefix)

    @classmethod
    def seeded(
        cls, seed: int = 0, *, vocabulary_size: int = ByteTokenizer.vocabulary_size, end_bias: float = -2.0
    ) -> "ScriptedModel":
        """Noise: as many different continuations as there are prefixes. Over ByteTokenizer's vocabulary it writes
        lower-case letters and spaces, and ends now and then (`end_bias` is added to the end token's logit)."""
        offset = _byte_offset(end_bias) if vocabulary_size == ByteTokenizer.vocabulary_size else np.float32(0)

        def logits(prefix: Prefix) -> Logits:
            key = prefix_hash(prefix.tokens, 0) ^ (seed * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF)
            noise = np.random.Generator(np.random.PCG64(key)).standard_normal(vocabulary_size, dtype=np.float32)
            return 2 * noise + offset

        return cls(logits, vocabulary_size)

    @classmethod
    def replying(
        cls,
        replies: Sequence[str] | Mapping[str, str] | Callable[[str], str],
        *,
        tokenizer: ByteTokenizer | None = None,
    ) -> "ScriptedModel":
        """Writes a reply and ends. `replies`: in order, the last one for ever after; or by the text that stands nearest
        to the prompt's end; or a function of the prompt's text. A `select` finds the choice that begins the reply most
        probable."""
        codec = tokenizer or ByteTokenizer()
        find = _finder(replies)

        def logits(prefix: Prefix) -> Logits:
            prompt = codec.decode(prefix.tokens[: prefix.num_prompt].tolist(), skip_special=False)
            reply = [*codec.encode(find(prompt, prefix.turn)), codec.end_ids[0]]
            output = prefix.tokens[prefix.num_prompt :].tolist()
            found = np.zeros(codec.vocabulary_size, np.float32)
            follows = len(output) < len(reply) and reply[: len(output)] == output
            found[reply[len(output)] if follows else codec.end_ids[0]] = _SURE
            return found

        return cls(logits, codec.vocabulary_size)


def _byte_offset(end_bias: float) -> Logits:
    offset = np.full(ByteTokenizer.vocabulary_size, -30.0, np.float32)
    offset[list(b"abcdefghijklmnopqrstuvwxyz ")] = 0.0
    offset[END] = end_bias
    return offset


def _finder(replies: Sequence[str] | Mapping[str, str] | Callable[[str], str]) -> Callable[[str, int], str]:
    if callable(replies):
        return lambda prompt, turn: replies(prompt)
    if isinstance(replies, Mapping):
        return lambda prompt, turn: _nearest(replies, prompt)
    script = (replies,) if isinstance(replies, str) else tuple(replies)
    return lambda prompt, turn: script[min(turn, len(script) - 1)] if script else ""


def _nearest(replies: Mapping[str, str], prompt: str) -> str:
    """The reply whose key ends latest in the prompt; of several, the longest key's."""
    ends = [(prompt.rfind(key) + len(key), len(key), reply) for key, reply in replies.items() if key in prompt]
    return max(ends, default=(0, 0, ""))[2]
