"""How long a step takes on a machine that was measured: a table over the step's tokens, and linear terms beside it.

    T = base(tokens of the step) + a * rows + b * (KV tokens that single-token rows read) + c * (pairs of chunk rows)

`base` is straight between its knots. A roofline (`cost.py`) says what a large device can; a small one, such as two
cores of a CPU, has no such corners, and its step is mostly the products of its tokens. All terms are fitted together,
none below zero, to steps that an engine took; relative errors count, so that short steps are right too. What the loop
needs between two steps (deciding, telling) is fitted beside it. Arithmetic; no engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramet.runtime.types import PlannedRow, StepPlan

Floats = NDArray[np.float64]

KNOTS = (1, 4, 16, 64, 256, 512)
"""Tokens of a step at which `base` is tabulated; beyond the last it goes on as straight as before it."""
_OUTLIER = 2.5
"""A step that took so many times what the first fit says met somebody else on the machine."""
_PAUSE = 5.0
"""Between steps, times the median: the same."""
_NOTHING: Mapping[int, int] = {}


class StepShape(NamedTuple):
    """A step as the formula sees it."""

    num_tokens: int
    num_rows: int
    num_read: int
    """Context tokens of rows that compute one token."""
    num_pairs: float
    """Query-key pairs of rows that compute more."""

    @classmethod
    def of(cls, rows: Iterable[PlannedRow], loaded: Mapping[int, int] = _NOTHING) -> "StepShape":
        num_tokens = num_rows = num_read = 0
        pairs = 0.0
        for row in rows:
            skipped = loaded.get(row.sequence_id, 0)
            new, context = len(row.tokens) - skipped, row.start + skipped
            num_tokens, num_rows = num_tokens + new, num_rows + 1
            if new == 1:
                num_read += context
            else:
                pairs += new * (context + new / 2)
        return cls(num_tokens, num_rows, num_read, pairs)


class TimedStep(NamedTuple):
    """A step that an engine took."""

    shape: StepShape
    compute_s: float
    between_s: float | None
    """From its end to the next step's beginning; None where the engine had nothing to do meanwhile."""


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Behind the executor's protocol of costs. Fit it with `fit`."""

    base_s: tuple[float, ...]
    """At `KNOTS`."""
    row_s: float
    read_s: float
    pair_s: float
    between_s: tuple[float, float]
    """Between two steps: fixed, and for each row."""
    error: float
    """Median relative error over the steps that it was fitted to."""

    def shape_s(self, shape: StepShape) -> float:
        base = float(_hats(shape.num_tokens) @ np.array(self.base_s))
        linear = self.row_s * shape.num_rows + self.read_s * shape.num_read + self.pair_s * shape.num_pairs
        return max(0.0, base) + linear

    def plan_s(self, plan: StepPlan, loaded: Mapping[int, int] = _NOTHING) -> float:
        return self.shape_s(StepShape.of(plan.rows, loaded))

    def overhead_s(self, plan: StepPlan) -> float:
        """What the loop needs beside the step."""
        return self.between_s[0] + self.between_s[1] * len(plan.rows)

    def rebuild_s(self, start: int, end: int) -> float:
        """Seconds to compute tokens [start, end) of a context, in one chunk."""
        return self.shape_s(StepShape(end - start, 1, 0, (end - start) * (start + end) / 2))


def fit(steps: Sequence[TimedStep], *, quiet_only: bool = True) -> MeasuredCost:
    """At least a few dozen steps, of all sizes that are to be foretold. `quiet_only`: without those that met somebody
    else; False where what they met is to be in the costs."""
    if len(steps) < 2 * (len(KNOTS) + 3):
        raise ValueError(f"steps: expected {2 * (len(KNOTS) + 3)} or more measured steps, got {len(steps)}")
    terms = np.array(
        [[*_hats(s.shape.num_tokens), s.shape.num_rows, s.shape.num_read, s.shape.num_pairs] for s in steps]
    )
    seconds = np.array([step.compute_s for step in steps])
    found = _relative_fit(terms, seconds)
    quiet = seconds < _OUTLIER * (terms @ found) if quiet_only else np.ones(len(seconds), bool)
    found = _relative_fit(terms[quiet], seconds[quiet])
    if not quiet_only:
        found = found * (seconds.sum() / (terms @ found).sum())  # relative errors favour the short ones
    error = float(np.median(np.abs(terms[quiet] @ found / seconds[quiet] - 1.0)))
    num_knots = len(KNOTS)
    return MeasuredCost(
        base_s=tuple(found[:num_knots].tolist()),
        row_s=float(found[num_knots]),
        read_s=float(found[num_knots + 1]),
        pair_s=float(found[num_knots + 2]),
        between_s=_between(steps),
        error=error,
    )


def _terms(shape: StepShape) -> list[float]:
    return [*_hats(shape.num_tokens), shape.num_rows, shape.num_read, shape.num_pairs]


def _between(steps: Sequence[TimedStep]) -> tuple[float, float]:
    known = [(step.shape.num_rows, step.between_s) for step in steps if step.between_s is not None]
    if not known:
        return (0.0, 0.0)
    rows, seconds = np.array(known, np.float64).T
    kept = seconds < _PAUSE * np.median(seconds)
    fixed, each = nonnegative_fit(np.stack([np.ones(kept.sum()), rows[kept]], axis=1), seconds[kept])
    return (float(fixed), float(each))


def _relative_fit(terms: Floats, seconds: Floats) -> Floats:
    return nonnegative_fit(terms / seconds[:, None], np.ones(len(seconds)))


def nonnegative_fit(terms: Floats, wanted: Floats) -> Floats:
    """Least squares with no coefficient below zero, by coordinate descent: small, and without a library for it."""
    scale = np.sqrt((terms**2).sum(axis=0))
    scale[scale == 0] = 1.0
    gram, aim = (terms / scale).T @ (terms / scale), (terms / scale).T @ wanted
    found = np.zeros(len(aim))
    for _ in range(5_000):
        before = found.copy()
        for index in range(len(found)):
            if gram[index, index] > 0:
                slope = aim[index] - gram[index] @ found + gram[index, index] * found[index]
                found[index] = max(0.0, slope / gram[index, index])
        if np.abs(found - before).max() < 1e-9 * (1e-12 + np.abs(found).max()):
            break
    scaled: Floats = found / scale
    return scaled


def _hats(num_tokens: int) -> Floats:
    """Weights of the knots, which sum to 1."""
    weights = np.zeros(len(KNOTS))
    high = min(len(KNOTS) - 1, max(1, int(np.searchsorted(KNOTS, num_tokens))))
    share = (num_tokens - KNOTS[high - 1]) / (KNOTS[high] - KNOTS[high - 1])
    weights[high - 1], weights[high] = 1.0 - share, share
    return weights
