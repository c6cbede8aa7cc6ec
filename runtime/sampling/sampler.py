"""LOGITS -> PROBS -> IDS for the rows of one step. Knows sequences only by what they ask; no grammar, no pages.

The order of a row's life, and each stage's file:
  1. logits that are not finite end the row, and no other                                      (here)
  2. penalties, then bias, then the mask: grammar, allowed ids, no end before min_tokens       (penalties, masks,
     narrow)
  3. logprobs, of what stage 2 left, before temperature                                        (logprobs)
  4. greedy: the first largest; else temperature, top-k, top-p, min-p and the draw             (draw, noise)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ramet.kernels.sample import sample as kernels_sample
from ramet.runtime.sampling.draw import argmax_rows, chosen_rows, draw_settings, draw_tokens, is_greedy
from ramet.runtime.sampling.logprobs import token_logprobs
from ramet.runtime.sampling.masks import Words, apply_device_masks, apply_masks, pack, pack_all_but
from ramet.runtime.sampling.narrow import Tokens, few_tokens, gather
from ramet.runtime.sampling.noise import noise_keys
from ramet.runtime.sampling.penalties import (
    PenalisedRow,
    TokenCounts,
    apply_bias,
    apply_penalties,
    make_bias,
    needs_counts,
)
from ramet.runtime.types import GenerateSpec, TokenLogprob


class SamplerState:
    """What sampling remembers of one sequence: almost nothing, since noise is a function of the position."""

    def __init__(
        self,
        spec: GenerateSpec,
        *,
        prompt: Sequence[int],
        output: Sequence[int],
        end_ids: Iterable[int],
        vocabulary_size: int,
        default_seed: int,
    ) -> None:
        """`output`: tokens generated before, counted as if drawn here. `end_ids`: the model's; the spec's own stop ids
        are added. `default_seed`: for a spec without one."""
        self.sampling = spec.sampling
        self.num_logprobs = spec.logprobs
        self.seed = default_seed if spec.sampling.seed is None else spec.sampling.seed
        self.is_greedy = is_greedy(spec.sampling)
        self.bias = make_bias(spec.sampling.logit_bias, vocabulary_size)
        self._counts = TokenCounts(prompt, output) if needs_counts(spec.sampling) else None
        self._num_output = len(output)
        self._min_tokens = spec.min_tokens
        allowed = spec.sampling.allowed_token_ids
        self._allowed = pack(allowed, vocabulary_size) if allowed else None
        ends = {*(() if spec.ignore_eos else end_ids), *spec.stop_token_ids}
        self._not_ends = pack_all_but(ends, vocabulary_size) if spec.min_tokens else None

    def append(self, tokens: Sequence[int]) -> None:
        """Tokens were drawn, or accepted."""
        self._num_output += len(tokens)
        if self._counts is not None:
            self._counts.append(tokens)

    def penalised(self, row: int, ahead: Sequence[int]) -> PenalisedRow | None:
        """The row's penalties where `ahead` would have been appended; None: it has none."""
        if self._counts is None:
            return None
        return PenalisedRow(row, self.sampling, *self._counts.seen(ahead))

    def has_own_mask(self, num_places: int) -> bool:
        """Whether something beside a grammar denies tokens at one of the next places."""
        waits_for_end = self._not_ends is not None and self._num_output < self._min_tokens
        return self._allowed is not None or (waits_for_end and num_places > 0)

    def mask(self, grammar: Words | None, num_ahead: int) -> Words | None:
        """What may be drawn `num_ahead` tokens from here; None: everything. A grammar that leaves only the end wins
        over min_tokens."""
        words = grammar
        if self._allowed is not None:
            words = self._allowed if words is None else words & self._allowed
        if self._not_ends is not None and self._num_output + num_ahead < self._min_tokens:
            kept = self._not_ends if words is None else words & self._not_ends
            words = kept if kept.any() else words
        return words


class DrawRow(NamedTuple):
    """One place where a token is wanted; row i of the logits belongs to the i-th of these."""

    state: SamplerState
    position: int
    """Index in the whole sequence, prompt included, of the token to draw."""
    ahead: Sequence[int] = ()
    """Drafts between the sequence's end and this place, taken as accepted."""
    grammar: Words | None = None
    """The grammar's mask for this place."""
    mask_row: int | None = None
    """The same on the device: a row of the words that `sample` gets."""


class Drawn(NamedTuple):
    """What a row gave: a token, or why there is none."""

    token: int
    logprob: TokenLogprob | None = None
    """Where the spec asks for logprobs."""
    problem: str | None = None
    """The row has no token; the others do."""


NOT_FINITE = "the model's logits are not finite"
NOTHING_ALLOWED = "no token is allowed: grammar, allowed_token_ids and logit_bias leave none"


def sample(
    logits: Tensor,
    rows: Sequence[DrawRow],
    words: Tensor | None = None,
    on_drawn: Callable[[Tensor], None] | None = None,
) -> list[Drawn]:
    """Draw a token for each row.

    logits    float32 [R, V]  V: the tokenizer's vocabulary, without the model's padding; changed in place
    words     int32 [M, W]    masks on the device, for rows with a `mask_row`
    on_drawn  gets the tokens, int64 [R] on the device, before the host waits for them
    """
    if not rows:
        return []
    problems, few = _adjust(logits, rows)
    closed = _apply_device_masks(logits, rows, words)
    drawn = _draw_apart(logits, rows, few) if few else _draw(logits, rows)
    if on_drawn is not None:
        on_drawn(drawn)
    tokens = _tolist(drawn)
    if closed is not None:
        problems |= {i: NOTHING_ALLOWED for i in closed.nonzero()[:, 0].tolist() if i not in problems}
    logprobs: list[TokenLogprob | None] = [None] * len(rows)
    asking = [i for i, row in enumerate(rows) if row.state.num_logprobs is not None and i not in problems]
    if asking:
        wanted = logits if len(asking) == len(rows) else logits[asking]
        num_top = [rows[i].state.num_logprobs or 0 for i in asking]
        found = token_logprobs(wanted, [tokens[i] for i in asking], num_top)
        for i, logprob in zip(asking, found, strict=True):
            logprobs[i] = logprob
    return [Drawn(token, logprobs[i], problems.get(i)) for i, token in enumerate(tokens)]


def _apply_device_masks(logits: Tensor, rows: Sequence[DrawRow], words: Tensor | None) -> Tensor | None:
    """The rows in which nothing is left, bool [R]; None where no row has such a mask."""
    masked = [(i, row.mask_row) for i, row in enumerate(rows) if row.mask_row is not None]
    if not masked:
        return None
    assert words is not None, "rows with masks on the device come with the words"
    at, numbers = zip(*masked, strict=True)
    return apply_device_masks(logits, words, at, numbers)


def _adjust(logits: Tensor, rows: Sequence[DrawRow]) -> tuple[dict[int, str], dict[int, Tokens]]:
    """Stages 1 and 2: what is wrong with which row, and what the narrow rows allow, where others were masked. Rows with
    a problem are filled with zeros, so that they disturb nothing that follows."""
    problems = dict.fromkeys(_rows_not_finite(logits), NOT_FINITE)
    states = [(i, row, row.state) for i, row in enumerate(rows) if i not in problems]
    penalties = [state.penalised(i, row.ahead) for i, row, state in states]
    apply_penalties(logits, [penalised for penalised in penalties if penalised is not None])
    biased = [(i, state.bias) for i, _, state in states if state.bias is not None]
    apply_bias(logits, biased)
    masks = [(i, state.mask(row.grammar, len(row.ahead))) for i, row, state in states]
    masked = [(i, words) for i, words in masks if words is not None]
    few: dict[int, Tokens] = {}
    many: list[tuple[int, Words]] = []
    for i, words in masked:
        tokens = _few_tokens(rows[i].state, words, logits.device)
        if tokens is None:
            many.append((i, words))
        elif len(tokens):
            few[i] = tokens
    apply_masks(logits, many)
    closed = [i for i, words in masked if not words.any()]  # finite logits under a mask with a bit are open
    closed += [i for i, _ in biased if not bool(logits[i].amax() > float("-inf"))]
    problems |= dict.fromkeys(closed, NOTHING_ALLOWED)
    if problems:
        logits[list(problems)] = 0.0
    return problems, few


def _few_tokens(state: SamplerState, words: Words, device: torch.device) -> Tokens | None:
    """What a row is drawn from, where that is little. Not where its logprobs are asked or a bias may close it."""
    if device.type != "cpu" or state.bias is not None or state.num_logprobs is not None:
        return None
    return few_tokens(words)


def _rows_not_finite(logits: Tensor) -> list[int]:
    """A sum is finite where all are, unless it overflows: the cheap question first, the exact one where it says no."""
    suspects = (~torch.isfinite(logits.sum(-1))).nonzero()[:, 0].tolist()
    return [row for row in suspects if not bool(torch.isfinite(logits[row]).all())]


def _draw_apart(logits: Tensor, rows: Sequence[DrawRow], few: Mapping[int, Tokens]) -> Tensor:
    """The narrow rows from their few tokens, the others from all. Where one token is allowed there is no draw."""
    drawn = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    wide = [i for i in range(len(rows)) if i not in few]
    if wide:
        drawn[wide] = _draw(logits[wide], [rows[i] for i in wide])
    forced = {i: int(tokens[0]) for i, tokens in few.items() if len(tokens) == 1}
    if forced:
        drawn[list(forced)] = torch.tensor(list(forced.values()), dtype=torch.int64)
    open_rows = [(i, tokens) for i, tokens in few.items() if len(tokens) > 1]
    if open_rows:
        narrow = gather(logits, open_rows)
        drawn[narrow.rows] = _draw(narrow.logits, [rows[i] for i in narrow.rows], narrow.tokens, logits.shape[1])
    return drawn


def _draw(
    logits: Tensor, rows: Sequence[DrawRow], tokens: Tensor | None = None, vocabulary_size: int | None = None
) -> Tensor:
    """Stage 4: the token of each row; `tokens` of the columns, where they are not the whole vocabulary."""
    if logits.device.type == "cuda":
        return draw_with_kernel(logits, rows)
    drawn = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    greedy = np.array([row.state.is_greedy for row in rows])
    for at in chosen_rows(greedy, logits.device):
        columns = argmax_rows(logits[at])
        drawn[at] = columns if tokens is None else tokens[at].gather(1, columns[:, None])[:, 0]
    drawing = [row for row in rows if not row.state.is_greedy]
    for at in chosen_rows(~greedy, logits.device):
        settings = draw_settings(
            [row.state.sampling for row in drawing],
            [row.state.seed for row in drawing],
            [row.position for row in drawing],
            vocabulary_size or logits.shape[1],
            logits.device,
            None if tokens is None else tokens[at],
        )
        drawn[at] = draw_tokens(logits[at], settings)
    return drawn


def draw_with_kernel(logits: Tensor, rows: Sequence[DrawRow]) -> Tensor:
    """Stage 4 in one launch, for GPUs: the same noise and the same filters, so the same tokens."""
    samplings = [row.state.sampling for row in rows]
    keys = noise_keys([row.state.seed for row in rows], [row.position for row in rows])
    settings = {
        "temperature": [0.0 if row.state.is_greedy else row.state.sampling.temperature for row in rows],
        "top_p": [sampling.top_p for sampling in samplings],
        "min_p": [sampling.min_p for sampling in samplings],
    }
    tokens, _ = kernels_sample(
        logits,
        top_k=torch.tensor([min(sampling.top_k, 2**31 - 1) for sampling in samplings], dtype=torch.int32).to(
            logits.device
        ),
        keys=torch.from_numpy(keys).to(logits.device),
        **{name: torch.tensor(values, dtype=torch.float32).to(logits.device) for name, values in settings.items()},
    )
    return tokens.long()


def _tolist(tokens: Tensor) -> list[int]:
    found: list[int] = tokens.tolist()
    return found
