"""S2: what an ideal time to live would hit, recompute and hold (WEKA). Arithmetic on the recorded gaps; no engine."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ramet.runtime.simulate.figure import Figure, equal
from ramet.runtime.simulate.traces import Session, weka

EXPECTED = {
    10.0: (".4526", "21.48", "0.873"),
    60.0: (".7834", "8.50", "2.353"),
    300.0: (".9071", "3.646", "5.129"),
    3600.0: (".9698", "1.185", "12.33"),
    math.inf: (".9745", "1.000", "19.18"),
}
"""Time to live in s -> hit rate, prefill amplification, idle residency, to the digits given."""


class Sweep(NamedTuple):
    """At one time to live."""

    hit: float
    """Reusable tokens still held / input tokens."""
    amplification: float
    """Tokens prefilled / tokens that had to be."""
    residency: float
    """Seconds of idle holding / seconds of serving."""


class GapTable:
    """The rows of all sessions, sub-agents included, that have a parent and a recorded gap."""

    def __init__(self, sessions: list[Session]) -> None:
        rows = [row for session in sessions for row in session.all_rows]
        self._server_s = sum(row.server_s or 0.0 for row in rows)
        rows = [row for row in rows if row.parent >= 0 and row.gap_s is not None]
        self.num_rows = len(rows)
        self._gaps = np.array([row.gap_s for row in rows], float)
        self._inputs = np.array([row.input_tokens for row in rows])
        self._reusable = np.array([row.reusable_tokens for row in rows])

    def at(self, ttl_s: float) -> Sweep:
        hit = int(self._reusable[self._gaps <= ttl_s].sum())
        fresh = int(self._inputs.sum() - self._reusable.sum())
        missed = int(self._reusable.sum()) - hit
        held_s = float(np.minimum(self._gaps, ttl_s).sum())
        return Sweep(hit / int(self._inputs.sum()), (fresh + missed) / fresh, held_s / self._server_s)


def s2(traces: Path) -> Figure:
    table = GapTable(weka(traces / "weka-claude-code" / "weka_compact.jsonl.gz"))
    values: dict[str, float] = {"rows": table.num_rows}
    checks = [equal("rows", table.num_rows, 48_447, 0)]
    for ttl_s, expected in EXPECTED.items():
        for field, value, given in zip(Sweep._fields, table.at(ttl_s), expected, strict=True):
            key = f"{field}_{ttl_s:g}s"
            values[key] = value
            checks.append(equal(key, value, float(given), 0.5 * 10.0 ** -len(given.partition(".")[2])))
    return Figure(name="S2", title="WEKA: an ideal time to live", values=values, checks=tuple(checks))
