"""LOGITS -> logprobs of given tokens and of the most probable ones. Knows no sequence.

A logprob is the log-softmax of the logits given, before any temperature: for outputs those are the penalised and masked
ones, for prompts and choices the model's own.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ramet.runtime.types import TokenLogprob


def token_logprobs(logits: Tensor, tokens: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprob]:
    """One per row.

    logits   float32 [R, V]
    tokens   [R]  whose logprob is wanted; that of a banned token is -inf
    num_top  [R]  how many of the most probable tokens to name; fewer where fewer are allowed
    """
    if not tokens:
        return []
    V = logits.shape[1]
    normaliser = torch.logsumexp(logits, -1)  # [R]
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0] - normaliser
    width = min(V, max(num_top))
    tops: list[list[tuple[int, float]]] = [[] for _ in tokens]
    if width > 0:
        values, ids = logits.topk(width)
        rows = zip(ids.tolist(), (values - normaliser[:, None]).tolist(), num_top, strict=True)
        tops = [
            [(token, value) for token, value in zip(row_ids[:n], row_values[:n], strict=True) if value > float("-inf")]
            for row_ids, row_values, n in rows
        ]
    return [TokenLogprob(*row) for row in zip(tokens, chosen.tolist(), tops, strict=True)]
