"""Virtual time over programs: who is behind its fair share. Pure; knows service, not seconds.

If all active programs shared what the machine gives evenly by weight, virtual time would advance by (service given) /
(sum of weights), and a program of cost C that came at virtual time V would end at V + C / w. A program is *starving*
when virtual time has passed that point by more than a slack: it then goes first, oldest first. Whatever the order does
otherwise, no program ends later than under fair sharing by more than the slack and one largest program. (The finish
times are those of Justitia; there they are the order itself.)
"""

from typing import NamedTuple

LARGE_COUNTS = 0.9
"""What a program has had counts for this much of its cost. With all of it a very large program is never behind: its
finish moves away as fast as it is served. The largest of S9's mix then completes in .53 of the time without fair
shares, and in .50 with this, for half a percent more mean."""


def predicted_cost(class_mean: float, attained: float) -> float:
    """Total service of a program: the mean of its class, or nearly what it has had, if that is more."""
    return max(class_mean, LARGE_COUNTS * attained)


class FairShare(NamedTuple):
    """A program's place in virtual time."""

    weight: float
    arrived: float
    """Virtual time at which it opened."""

    def finish(self, cost: float) -> float:
        """The virtual time at which a program of that cost would have ended."""
        return self.arrived + cost / self.weight


class VirtualTime:
    """Service per unit of weight that a fair share would have given since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self._weight = 0.0
        self._num_active = 0

    @property
    def num_active(self) -> int:
        return self._num_active

    def join(self, weight: float = 1.0) -> FairShare:
        """A program opens."""
        self._weight += weight
        self._num_active += 1
        return FairShare(weight, self.now)

    def leave(self, share: FairShare) -> None:
        """A program ends."""
        self._num_active -= 1
        self._weight = self._weight - share.weight if self._num_active else 0.0

    def advance(self, service: float) -> None:
        """The machine gave so much, to whomever."""
        if self._num_active:
            self.now += service / self._weight
