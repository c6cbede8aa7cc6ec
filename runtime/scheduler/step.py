"""A step in the making: which sequence computes how much. Becomes a StepPlan once everything is decided."""

from dataclasses import dataclass, field

from ramet.runtime.scheduler.sequence import Sequence
from ramet.runtime.types import PageCopy


@dataclass(slots=True, eq=False)
class Share:
    """What one sequence gets of a step."""

    seq: Sequence
    start: int
    num_tokens: int
    """Pending tokens computed."""
    num_extra: int
    """Tokens after those: drafts, or the choices of a select."""


@dataclass(slots=True)
class StepDraft:
    """Shares by sequence id, in the order of the rows, and the tokens that are left."""

    num_left: int
    shares: dict[int, Share] = field(default_factory=dict)
    copies: list[PageCopy] = field(default_factory=list)

    def give(self, seq: Sequence, num_tokens: int, num_extra: int) -> None:
        self.shares[seq.id] = Share(seq, seq.num_computed, num_tokens, num_extra)
        self.num_left -= num_tokens + num_extra

    def give_more(self, share: Share, num_tokens: int, num_extra: int) -> None:
        share.num_tokens += num_tokens
        share.num_extra = num_extra
        self.num_left -= num_tokens + num_extra
