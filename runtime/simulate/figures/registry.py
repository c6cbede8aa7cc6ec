"""The figures of the report by name."""

from collections.abc import Callable
from pathlib import Path

from ramet.runtime.simulate.figure import Figure
from ramet.runtime.simulate.figures.agents import s6, s7, s12
from ramet.runtime.simulate.figures.always import baselines, negative, overhead
from ramet.runtime.simulate.figures.capacity import s1, s1b
from ramet.runtime.simulate.figures.gang import s14
from ramet.runtime.simulate.figures.intercept import s4
from ramet.runtime.simulate.figures.order import s3, s9
from ramet.runtime.simulate.figures.published import s5, s8, s11, s13
from ramet.runtime.simulate.figures.retention import s16
from ramet.runtime.simulate.figures.ttl import s2

FIGURES: dict[str, Callable[[Path], Figure]] = {
    "S1": s1,
    "S1b": s1b,
    "S2": s2,
    "S3": s3,
    "S4": s4,
    "S5": s5,
    "S6": s6,
    "S7": s7,
    "S8": s8,
    "S9": s9,
    "S11": s11,
    "S12": s12,
    "S13": s13,
    "S14": s14,
    "S16": s16,
    "baselines": baselines,
    "negative": negative,
    "overhead": overhead,
}
"""Name -> measure it, given the folder of traces."""
