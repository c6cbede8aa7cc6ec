"""Turns of one program that run side by side: the branches of a fork, and what their join still waits for. Counts only.

A gang is admitted together as far as it fits: after its first branch, another starts only if there is room for all that
the running ones are expected to add, and for its own. So q = min(n, (free - prefix) / growth) run, the others follow as
these end, and none steps back for a sibling. Where a join waits for so little that one quantum ends it, the branches
that are left go before everybody else; so does, in any program, a turn that is a quantum from its own end: to stop it
would cost more than it still takes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ramet.runtime.scheduler.policies.base import Order
from ramet.runtime.scheduler.sequence import Sequence

QUANTUM = 32
"""Tokens that a join, or a turn, may still want to be raised."""


@dataclass(slots=True)
class Gang:
    """The turns of a program in flight, and those that ended since it last had none."""

    members: dict[int, Sequence] = field(default_factory=dict)
    num_ended: int = 0
    num_output: int = 0
    """Tokens of those that ended."""

    def left(self, seq: Sequence) -> int | None:
        """Output tokens that a member is expected to add, going by those that ended; None before one did."""
        if not self.num_ended:
            return None
        expected = self.num_output / self.num_ended - seq.num_output
        return max(0, min(int(expected), seq.max_output - seq.num_output))


class Gangs:
    """By program. Tell it of each turn's `begin` and `end`."""

    def __init__(self) -> None:
        self._gangs: dict[str, Gang] = {}

    def begin(self, seq: Sequence) -> None:
        if seq.program_id:
            self._gangs.setdefault(seq.program_id, Gang()).members[seq.id] = seq

    def end(self, seq: Sequence) -> list[Sequence]:
        """The waiting members whose place may have changed."""
        gang = self._gangs.get(seq.program_id)
        if gang is None or gang.members.pop(seq.id, None) is None:
            return []
        if not gang.members:
            del self._gangs[seq.program_id]
            return []
        gang.num_ended += 1
        gang.num_output += seq.num_output
        return [each for each in gang.members.values() if not each.is_running]

    def running_beside(self, seq: Sequence) -> Iterator[Sequence]:
        """Members of its gang that run."""
        gang = self._gangs.get(seq.program_id)
        members: Iterable[Sequence] = gang.members.values() if gang is not None else ()
        return (each for each in members if each.is_running and each is not seq)

    def growth(self, seq: Sequence, usual: int) -> int:
        """Output tokens to keep room for; `usual`, where no sibling says."""
        gang = self._gangs.get(seq.program_id)
        left = gang.left(seq) if gang is not None else None
        return min(usual, seq.max_output - seq.num_output) if left is None else left

    def is_raised(self, seq: Sequence) -> bool:
        """Is it, or what its join waits for, within a quantum of the end?"""
        if seq.num_output > 0 and seq.max_output - seq.num_output <= QUANTUM:
            return True
        gang = self._gangs.get(seq.program_id)
        if gang is None or not gang.num_ended:
            return False
        total = 0
        for member in gang.members.values():
            num_new = member.num_prompt - max(member.num_known, member.num_computed)
            total += (gang.left(member) or 0) + max(0, num_new)
            if total > QUANTUM:
                return False
        return True


class StragglersFirst:
    """Around an order: who is raised goes before all others."""

    def __init__(self, inner: Order, gangs: Gangs) -> None:
        self._inner, self._gangs = inner, gangs

    @property
    def refresh_s(self) -> float:
        return self._inner.refresh_s

    @property
    def epoch(self) -> int:
        return self._inner.epoch

    @property
    def reads_cache(self) -> bool:
        return self._inner.reads_cache

    def rank(self, seq: Sequence, now_s: float) -> tuple[float, ...]:
        return (not self._gangs.is_raised(seq), *self._inner.rank(seq, now_s))
