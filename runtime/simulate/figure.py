"""What a figure of the report is: numbers with what they should be. Knows no trace and no policy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Check(NamedTuple):
    """A number and the range in which it should lie."""

    name: str
    value: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def holds(self) -> bool:
        return self.low <= self.value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One of S1 to S16."""

    name: str
    title: str
    values: Mapping[str, float]
    """Everything that was measured, by a name that tells set-up and unit."""
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """Set-up, constants of ours, and the reason where a check does not hold."""

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)


def equal(name: str, value: float, expected: float, tolerance: float) -> Check:
    """A number that is given to so many digits."""
    return Check(name, value, expected - tolerance, expected + tolerance)


def at_least(name: str, value: float, low: float) -> Check:
    return Check(name, value, low=low)


def at_most(name: str, value: float, high: float) -> Check:
    return Check(name, value, high=high)
