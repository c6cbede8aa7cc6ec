"""LOGITS -> LOGITS, sparse: repetition, frequency and presence penalties, and logit bias. Knows no sequence.

Only the tokens that a row has seen are touched, so a step costs the seen tokens and not the vocabulary, and the counts
grow by one per token instead of being built anew. The order is: repetition (divide a positive logit, multiply a
negative one; tokens of prompt and output), then frequency and presence (subtract; output only), then bias (add).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.runtime.types import Sampling

BANNED_FROM = -100.0
"""A bias this low is no bias but a ban, as clients of the OpenAI API mean it."""


def needs_counts(sampling: Sampling) -> bool:
    """Does any penalty look at what was seen?"""
    return bool(sampling.repetition_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty)


class TokenCounts:
    """Which tokens a sequence has seen, and how often in its output."""

    def __init__(self, prompt: Sequence[int] = (), output: Sequence[int] = ()) -> None:
        seen = np.unique(np.asarray(prompt, dtype=np.int64))
        self._slots = {token: slot for slot, token in enumerate(seen.tolist())}
        self._tokens, self._counts = seen, np.zeros(len(seen), dtype=np.float32)
        self.append(output)

    def append(self, tokens: Sequence[int]) -> None:
        """Add output tokens."""
        for token in tokens:
            slot = self._slots.setdefault(token, len(self._slots))
            if slot == len(self._tokens):
                self._grow()
            self._tokens[slot] = token
            self._counts[slot] += 1

    def seen(self, ahead: Sequence[int] = ()) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The seen tokens, each once, and their counts in the output, as if `ahead` had been appended."""
        if ahead:
            other = TokenCounts.__new__(TokenCounts)
            other._slots, other._tokens, other._counts = dict(self._slots), self._tokens.copy(), self._counts.copy()
            other.append(ahead)
            return other.seen()
        num_seen = len(self._slots)
        return self._tokens[:num_seen], self._counts[:num_seen]

    def _grow(self) -> None:
        room = max(64, len(self._tokens))
        self._tokens = np.concatenate([self._tokens, np.zeros(room, dtype=np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.float32)])


class PenalisedRow(NamedTuple):
    row: int
    """Of the logits."""
    sampling: Sampling
    tokens: NDArray[np.int64]
    """[n]  the seen tokens, each once"""
    counts: NDArray[np.float32]
    """[n]  how often in the output"""


def apply_penalties(logits: Tensor, penalised: Sequence[PenalisedRow]) -> None:
    """Change the seen tokens' logits in place.

    logits  float32 [R, V]
    """
    if not penalised:
        return
    device = logits.device
    lengths = [len(row.tokens) for row in penalised]
    settings = np.array(
        [
            (row.sampling.repetition_penalty, row.sampling.frequency_penalty, row.sampling.presence_penalty)
            for row in penalised
        ],
        dtype=np.float32,
    )
    repetition, frequency, presence = torch.from_numpy(settings.repeat(lengths, axis=0).T.copy()).to(device)  # [N] each
    rows = torch.from_numpy(np.repeat([row.row for row in penalised], lengths)).to(device)
    tokens = torch.from_numpy(np.concatenate([row.tokens for row in penalised])).to(device)
    counts = torch.from_numpy(np.concatenate([row.counts for row in penalised])).to(device)
    seen = logits[rows, tokens]
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    logits[rows, tokens] = seen - frequency * counts - presence * (counts > 0)


def apply_penalties_reference(
    logits: Sequence[float], sampling: Sampling, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """The definition, for one row; tests compare with it."""

    def penalised(token: int, logit: float) -> float:
        if token in prompt or token in output:
            logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        count = list(output).count(token)
        return logit - sampling.frequency_penalty * count - sampling.presence_penalty * (count > 0)

    return [penalised(token, logit) for token, logit in enumerate(logits)]


class Bias(NamedTuple):
    """A logit bias, ready to add."""

    tokens: NDArray[np.int64]
    values: NDArray[np.float32]
    """-inf where the token is banned."""


def make_bias(bias: Mapping[int, float], vocabulary_size: int) -> Bias | None:
    """None where there is nothing to add. Ids outside the vocabulary can't be drawn anyway."""
    known = {token: value for token, value in bias.items() if 0 <= token < vocabulary_size and value}
    if not known:
        return None
    values = np.array(list(known.values()), dtype=np.float32)
    return Bias(np.array(list(known), dtype=np.int64), np.where(values <= BANNED_FROM, -np.inf, values))


def apply_bias(logits: Tensor, biased: Sequence[tuple[int, Bias]]) -> None:
    """Add to the logits of (row, bias) pairs, in place."""
    for row, bias in biased:
        logits[row].index_add_(
            0, torch.from_numpy(bias.tokens).to(logits.device), torch.from_numpy(bias.values).to(logits.device)
        )
