"""May one more sequence start, and how much of a step may it take? Counts only; knows no order and no tree.

Two marks keep the pool from being promised twice. A sequence starts only if its prompt fits beside what runs with
`high_water` of the pool not passed: the rest is room for everybody's next tokens, so that what was admitted is not
retracted a moment later. And one that was preempted comes back only if it can go on for a while. When nothing runs, the
first in line always starts: a pool that is too small for it alone is the business of its last page, not of admission.
"""

from typing import Protocol

from ramet.runtime.config import AdmissionConfig
from ramet.runtime.scheduler.sequence import Sequence
from ramet.runtime.types import Failed

_RESUME_TOKENS = 64
"""Room that a sequence wants beyond its known tokens before it starts: it will decode at least that long, mostly."""


class Admission(Protocol):
    """What bounds a step. Programs' admission comes behind the same protocol."""

    @property
    def max_step_tokens(self) -> int: ...

    @property
    def max_running(self) -> int: ...

    @property
    def prefill_share(self) -> float: ...

    def may_start(self, seq: Sequence, num_new_pages: int, num_leased: int, num_available: int, num_pages: int) -> bool:
        """`num_new_pages`  pages that its prompt lacks, and that some of its output will want
        `num_leased`     pages that running sequences hold, this one's cached prefix included
        `num_available`  pages free or evictable, of `num_pages`"""
        ...

    def growth(self, seq: Sequence) -> int:
        """Tokens that a turn is expected to add to its prompt, for a branch beside others of its program."""
        ...

    def lets_pass(self, seq: Sequence) -> bool:
        """May those behind a sequence that could not start try?"""
        ...

    def refusal(self, seq: Sequence, num_missing: int) -> Failed | None:
        """Why a sequence with a deadline is not even taken, `num_missing` tokens of whose prompt are not cached."""
        ...


class PageAdmission:
    """The high-water mark."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config

    @property
    def max_step_tokens(self) -> int:
        return self._config.max_step_tokens

    @property
    def max_running(self) -> int:
        return self._config.max_running

    @property
    def prefill_share(self) -> float:
        return self._config.prefill_share

    def may_start(self, seq: Sequence, num_new_pages: int, num_leased: int, num_available: int, num_pages: int) -> bool:
        return num_new_pages <= num_available and num_leased + num_new_pages <= self._config.high_water * num_pages

    def growth(self, seq: Sequence) -> int:
        return _RESUME_TOKENS

    def lets_pass(self, seq: Sequence) -> bool:
        return False

    def refusal(self, seq: Sequence, num_missing: int) -> Failed | None:
        return None


def tokens_to_start(seq: Sequence) -> int:
    """Tokens that a sequence should have room for when it starts: all it knows, and the first of its output."""
    return seq.num_tokens + min(_RESUME_TOKENS, seq.max_output - seq.num_output)
