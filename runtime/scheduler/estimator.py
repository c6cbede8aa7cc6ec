"""How long gaps last: a hazard table per key, learned from finished and from running gaps. No clock of its own.

A key is a path, most telling part last: ("agent", "shell", "git log") learns beside ("agent", "shell"), ("agent",)
and the prior. Each level counts, per bin of elapsed time, the gaps that ended in it (events) and those that were still
open when it began (exposed). A gap still in flight is right-censored: it adds exposure to the bins it has passed and no
event. The hazard of a bin leans on the level above with the strength of `PRIOR_EVENTS` events, and old counts fade with
a half life of `HALF_LIFE` gaps.

What the scheduler reads is the *effective* hazard, the best rate of returns per second held that any holding time d
from t on gives: H(t) = sup over d of P(D <= t + d | D > t) / E[min(D - t, d) | D > t]. The plain hazard will not do: no
tool returns in its first milliseconds, so it says "drop" at once. (Prior art: hazards by turn in UNISON, reuse times in
CacheWise; H, censoring and the levels are ours.)
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Key = tuple[str, ...]

EDGES: Floats = np.concatenate([[0.0], np.geomspace(0.005, 3600.0, 49)])
"""float64 [50]  lower edges of the bins in s: [0, 5 ms), 48 logarithmic ones to an hour, and the overflow."""
NUM_BINS = len(EDGES)
PRIOR_EVENTS = 10.0
HALF_LIFE = 2000.0
_FADE = 0.5 ** (1.0 / HALF_LIFE)
_REFIT_GROWTH = 1.05
_OVERFLOW_S = 3600.0
"""Length that the overflow bin is given when time is integrated."""
_PRIOR: Floats = 1.0 - (1.0 + EDGES) / (1.0 + np.append(EDGES[1:], EDGES[-1] + _OVERFLOW_S))
"""Hazard 1 / (1 + t) as the chance to end within each bin."""


class HazardTable(NamedTuple):
    """What is known of one key. All arrays float64 [NUM_BINS], by the bin in which the elapsed time lies."""

    ends_in_bin: Floats
    """Chance that a gap which reached the bin ends in it."""
    survival: Floats
    """Chance that a gap reaches the bin."""
    effective: Floats
    """H at the bin's lower edge, 1/s."""
    mean_left_s: Floats
    """Expected time still to wait at the bin's lower edge, s; an hour at most from the overflow on."""


class GapEstimator:
    """Durations by key. `begin` and `end` a gap, read what is known with `table`; a length may be `learn`ed whole."""

    def __init__(self) -> None:
        self._counts: dict[Key, _Counts] = {}
        self._open: dict[str, tuple[Key, float]] = {}
        self._tables: dict[Key, tuple[float, HazardTable]] = {}

    def begin(self, gap_id: str, key: Key, now_s: float) -> None:
        """A gap starts: its closing token was sampled."""
        self._open[gap_id] = (key, now_s)

    def end(self, gap_id: str, now_s: float) -> float | None:
        """The gap is over; its length, or None where it was not begun."""
        found = self._open.pop(gap_id, None)
        if found is None:
            return None
        key, began_s = found
        self.learn(key, now_s - began_s)
        return now_s - began_s

    def forget(self, gap_id: str) -> None:
        """The gap will not end (its program did); what it had waited is not learned."""
        self._open.pop(gap_id, None)

    def learn(self, key: Key, duration_s: float) -> None:
        """One finished gap, at each level of its key."""
        for depth in range(len(key) + 1):
            self._counts.setdefault(key[:depth], _Counts()).add(duration_s)

    def table(self, key: Key, now_s: float | None = None) -> HazardTable:
        """The table of a key. Refitted when the gaps seen at its levels grew by a twentieth; `now_s` lets gaps in
        flight count."""
        num_seen = self._num_seen(key)
        found = self._tables.get(key)
        if found is not None and num_seen < found[0] * _REFIT_GROWTH + 1e-9 and num_seen > 0:
            return found[1]
        table = tabulate(self._ends_in_bin(key, now_s))
        self._tables[key] = (num_seen, table)
        return table

    def num_learned(self, key: Key) -> int:
        """Finished gaps of exactly this level, faded ones included."""
        found = self._counts.get(key)
        return found.num_added if found else 0

    def _num_seen(self, key: Key) -> float:
        """Grows by a twentieth whenever any level of the key does so by about that much."""
        total = 1.0
        for depth in range(len(key) + 1):
            total *= 1.0 + self.num_learned(key[:depth])
        return total

    def _ends_in_bin(self, key: Key, now_s: float | None) -> Floats:
        chance = _PRIOR
        for depth in range(len(key) + 1):
            counts = self._counts.get(key[:depth])
            if counts is None and now_s is None:
                continue
            events, exposed = counts.read() if counts else (np.zeros(NUM_BINS), np.zeros(NUM_BINS))
            if now_s is not None:
                exposed = exposed + self._exposure_in_flight(key[:depth], now_s)
            chance = (events + PRIOR_EVENTS * chance) / (exposed + PRIOR_EVENTS)
        return chance

    def _exposure_in_flight(self, level: Key, now_s: float) -> Floats:
        """Bins that open gaps have wholly passed."""
        waited = [now_s - began for key, began in self._open.values() if key[: len(level)] == level]
        if not waited:
            return np.zeros(NUM_BINS)
        num_passed = np.searchsorted(EDGES, np.array(waited), side="right") - 1
        passed = np.bincount(num_passed, minlength=NUM_BINS + 1)
        at_least = np.cumsum(passed[::-1])[::-1].astype(np.float64)
        return at_least[1:]


class _Counts:
    """Events and exposure of one level, fading. Instead of shrinking what is old, what is new weighs more."""

    __slots__ = ("events", "num_added", "weight")

    def __init__(self) -> None:
        self.events = np.zeros(NUM_BINS)
        self.num_added = 0
        self.weight = 1.0

    def add(self, duration_s: float) -> None:
        self.weight /= _FADE
        self.events[bin_of(duration_s)] += self.weight
        self.num_added += 1
        if self.weight > 1e12:
            self.events /= self.weight
            self.weight = 1.0

    def read(self) -> tuple[Floats, Floats]:
        """Events in each bin, and gaps that reached it."""
        events = self.events / self.weight
        return events, np.cumsum(events[::-1])[::-1]


def bin_of(elapsed_s: float) -> int:
    """The bin in which an elapsed time lies."""
    return max(0, int(np.searchsorted(EDGES, elapsed_s, side="right")) - 1)


def tabulate(ends_in_bin: Floats) -> HazardTable:
    """Survival, H and mean time left from the chance to end in each bin. Within a bin, ends are spread evenly over its
    logarithm, as the bins are."""
    survival = np.concatenate([[1.0], np.cumprod(1.0 - ends_in_bin)])
    widths = np.append(np.diff(EDGES), _OVERFLOW_S)
    held = survival[1:] * widths + (survival[:-1] - survival[1:]) * _MEAN_OFFSET
    waited = np.concatenate([[0.0], np.cumsum(held)])  # integral of the survival up to each edge
    with np.errstate(divide="ignore", invalid="ignore"):
        returns = survival[:-1, None] - survival[None, :]  # [from edge, to edge]
        seconds = waited[None, :] - waited[:-1, None]
        rates = np.where(seconds > 0, returns / seconds, 0.0)
        mean_left = np.where(survival[:-1] > 0, (waited[-1] - waited[:-1]) / survival[:-1], 0.0)
    return HazardTable(ends_in_bin, survival[:-1], rates.max(axis=1), mean_left)


def _mean_offsets() -> Floats:
    """Mean time into a bin at which its gaps end."""
    low, high = EDGES[1:-1], EDGES[2:]
    inside = (high - low) / np.log(high / low) - low
    return np.concatenate([[EDGES[1] / 2], inside, [_OVERFLOW_S / 2]])


_MEAN_OFFSET: Floats = _mean_offsets()


def tool_key(workload: str, tool: str, command: str = "") -> Key:
    """The key of a tool call: class -> tool -> first command word(s)."""
    words = first_words(command)
    return (workload, tool, words) if words else (workload, tool)


def first_words(command: str) -> str:
    """The telling first word of a shell command: a leading `cd X &&` and assignments are skipped, and `python -m X`,
    `git X`, `pip X` and their like keep two words."""
    words = _without_cd(command.split())
    while words and "=" in words[0] and not words[0].startswith("="):
        words = words[1:]
    if not words:
        return ""
    head = words[0].rsplit("/", 1)[-1]
    if head.startswith("python") and len(words) > 2 and words[1] == "-m":
        return f"{head} -m {words[2]}"
    return f"{head} {words[1]}" if head in _TWO_WORDS and len(words) > 1 else head


_TWO_WORDS = frozenset({"git", "pip", "pip3", "npm", "cargo", "docker", "uv", "make", "go", "apt", "apt-get", "conda"})


def _without_cd(words: Sequence[str]) -> list[str]:
    rest = list(words)
    while len(rest) > 2 and rest[0] == "cd" and rest[2] in ("&&", ";"):
        rest = rest[3:]
    return rest
