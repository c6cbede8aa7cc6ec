"""Longest cached prefix first, with ageing.

Serving what is cached before it is evicted gives the most hits (with a cache that holds the longest request it equals a
depth-first walk of the prefix tree, which is optimal: Zheng et al. 2024, SGLang), but steady hot traffic would starve a
cold request. So waiting counts like cached tokens, `ageing_tokens_per_s` a second: nobody is overtaken by a request
that came more than (its cached tokens) / ageing_tokens_per_s seconds later, which bounds the wait by the context
length."""

from typing import ClassVar

from ramet.runtime.scheduler.sequence import Sequence


class LongestPrefixFirst:
    """matched + ageing * waited, largest first. The time that all wait together cancels out of a comparison, so ranks
    change only with what is cached."""

    refresh_s: ClassVar[float] = 0.25
    epoch: ClassVar[int] = 0
    reads_cache: ClassVar[bool] = True

    def __init__(self, *, ageing_tokens_per_s: float) -> None:
        if not ageing_tokens_per_s > 0:
            raise ValueError(f"ageing_tokens_per_s: expected more than 0, got {ageing_tokens_per_s}")
        self._ageing = ageing_tokens_per_s

    def rank(self, seq: Sequence, now_s: float) -> tuple[float, ...]:
        return (-seq.program.priority, self._ageing * seq.arrived_s - seq.num_matched, seq.arrival)
