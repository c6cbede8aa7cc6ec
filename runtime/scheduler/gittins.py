"""How much more a program will need, from those of its class that are done: the Gittins index. Pure; no clock.

G(a) = sup over d of P(S - a <= d | S > a) / E[min(S - a, d) + R | S > a]: after attained service a, the best chance of
ending per unit of service that any quantum d gives; R is what must be rebuilt first if the KV is gone. A class whose
residual grows with a (most are short, a few are endless) makes G fall: least attained service first. A class whose
residual shrinks makes G rise: first come, first served. Optimal for the mean in M/G/1 only (Gittins 1979; Aalto et al.
2009); with batching and limited memory it is a heuristic that the simulator has to justify.

That order looks at the mean completion alone, where a second more for a long program and for a short one weigh the
same. People feel the delay against what they asked for. So ending a program of size S is worth S ** -FAVOUR: 0 is the
mean completion, 1 the mean of completion over size; the half costs the first 0.2 % (S9) and halves the second where
sizes tell little about what is left (chat in S8).
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUM_LEVELS = 512
"""A table of 64 levels costs the mix of two classes 2 % of its mean completion (S9); lookups cost the same."""
FAVOUR = 0.5
"""Exponent by which short programs are worth more; see the module."""
MIN_COMPLETIONS = 8
"""Below that many a class knows nothing, and the order is least attained service, which serves programs of one size
side by side: with 30 in place of 8 the mean completion of 150 sessions is a fifth more (S5)."""
REBUILD_EVERY = 50
MAX_REMEMBERED = 2_000


class GittinsTable:
    """G of one class at up to `NUM_LEVELS` levels of attained service."""

    def __init__(self, sizes: Sequence[float], unfinished: Sequence[float] = (), *, favour: float = 0.0) -> None:
        """`sizes`       total service of finished programs of the class, at least one, all > 0
        `unfinished`  what programs that still run have had: they are at least so large
        `favour`      ending a program of size S is worth S ** -favour; 0: Gittins' own index"""
        self._favour = favour
        self._sizes: Floats = np.sort(np.asarray(sizes, np.float64))
        self._weights = _weights(self._sizes, np.sort(np.asarray(unfinished, np.float64)))
        self._mass: Floats = np.concatenate([[0.0], np.cumsum(self._weights)])
        self._total: Floats = np.concatenate([[0.0], np.cumsum(self._weights * self._sizes)])
        self._worth: Floats = np.concatenate([[0.0], np.cumsum(self._weights * self._sizes**-favour)])
        self._levels = _levels(self._sizes)
        self._ranks: Floats = np.array([self._index(float(level), 0.0) for level in self._levels])
        self.mean = float(self._sizes.mean())

    def index(self, attained: float, rebuild: float = 0.0) -> float:
        """G at an attained service. With a `rebuild` cost it is computed, else read from the table. A program beyond
        all that its class has seen gets the index of the last level."""
        if rebuild > 0.0:
            return self._index(attained, rebuild)
        return float(self._ranks[max(0, int(np.searchsorted(self._levels, attained, side="right")) - 1)])

    def _index(self, attained: float, rebuild: float) -> float:
        """Over quanta that end where some finished program did."""
        first = int(np.searchsorted(self._sizes, attained, side="right"))
        left = self._sizes[first:]
        if not len(left):
            return blind_index(float(self._sizes[-1]) + rebuild, self._favour)  # nobody came so far: as much again
        mass = 1.0 - self._mass[first]
        ended = self._mass[first + 1 :] - self._mass[first]
        served = self._total[first + 1 :] - self._total[first] - ended * attained
        served = served + (mass - ended) * (left - attained) + mass * rebuild
        worth = self._worth[first + 1 :] - self._worth[first]
        return float((worth / served).max())


def _weights(sizes: Floats, unfinished: Floats) -> Floats:
    """Of each finished size, where some are only known to be larger: the estimate of Kaplan and Meier (1958). Without
    it a young class looks as if it had no long programs, for those have not ended yet."""
    at_risk = len(sizes) - np.arange(len(sizes)) + len(unfinished) - np.searchsorted(unfinished, sizes, side="left")
    before = np.concatenate([[1.0], np.cumprod(1.0 - 1.0 / at_risk)[:-1]])
    weights: Floats = before / at_risk
    return weights


def _levels(sizes: Floats) -> Floats:
    """Attained services at which to tabulate: small whole numbers, such as turns, all; else 0 and steps that are even
    in the logarithm over the sizes seen."""
    low, high = float(sizes[0]), float(sizes[-1])
    if high <= NUM_LEVELS and (sizes == np.round(sizes)).all():
        return np.arange(0.0, high)
    return np.concatenate([[0.0], np.geomspace(low, high, NUM_LEVELS - 1)]) if high > low else np.array([0.0])


class RunningMean:
    """Of all that was added."""

    def __init__(self) -> None:
        self.mean, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._count += 1
        self.mean += (value - self.mean) / self._count


class ClassHistory:
    """Sizes of the finished programs of one class, and the table made of them now and then."""

    def __init__(self) -> None:
        self._sizes: list[float] = []
        self._mean = RunningMean()
        self._num_since = 0
        self.table: GittinsTable | None = None
        """None until `MIN_COMPLETIONS` have ended."""

    @property
    def mean(self) -> float:
        """Of the sizes seen; 0 before there are any."""
        return self._mean.mean

    def complete(self, size: float, unfinished: Iterable[float] = ()) -> None:
        """A program of the class ended with this total service; those that still run have had `unfinished`."""
        self._sizes.append(max(size, 1e-12))
        self._mean.add(size)
        del self._sizes[:-MAX_REMEMBERED]
        self._num_since += 1
        is_first = self.table is None and len(self._sizes) >= MIN_COMPLETIONS
        if is_first or (self.table is not None and self._num_since >= min(REBUILD_EVERY, len(self._sizes) // 4)):
            self.table, self._num_since = GittinsTable(self._sizes, list(unfinished), favour=FAVOUR), 0

    def index(self, attained: float, rebuild: float = 0.0) -> float | None:
        """G, or None while the class knows nothing."""
        return None if self.table is None else self.table.index(attained, rebuild)


def blind_index(service_left: float, favour: float = FAVOUR) -> float:
    """The index of a program of which only a guess is known: it ends after so much more service, and is that large."""
    return float(max(service_left, 1e-12) ** -(1.0 + favour))


def service_level(attained: float, quantum: float) -> int:
    """The level of a service: [0, q), [q, 2q), [2q, 4q), ... A program that stays in its level is not overtaken by one
    of the same level, so it is preempted at most once a doubling."""
    return 0 if attained < quantum else 1 + math.floor(math.log2(attained / quantum))
