"""The figures of the report by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ramet.runtime.simulate.figure import Figure
from ramet.runtime.simulate.figures.ablations import ablations
from ramet.runtime.simulate.figures.agents import s6, s7, s12
from ramet.runtime.simulate.figures.always import baselines, negative, overhead
from ramet.runtime.simulate.figures.capacity import s1, s1b
from ramet.runtime.simulate.figures.gang import s14
from ramet.runtime.simulate.figures.graphs import s10
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
    "S10": s10,
    "S11": s11,
    "S12": s12,
    "S13": s13,
    "S14": s14,
    "S16": s16,
    "baselines": baselines,
    "ablations": ablations,
    "negative": negative,
    "overhead": overhead,
}
"""Name -> measure it, given the folder of traces."""
QUICK: dict[str, Callable[[Path], Figure]] = {
    "S4": partial(s4, num_sessions=60),
    "S5": partial(s5, num_sessions=40),
    "S6": partial(s6, loads=(48, 72), seeds=(2,), until_s=400.0),
    "S7": partial(s7, seeds=(2,)),
    "S8": partial(s8, num_programs=60, num_trees=4),
    "S9": partial(s9, seeds=(0, 1)),
    "S10": partial(s10, rates=(1.0,)),
    "S11": partial(s11, loads=(20, 50), ratios=(1,), until_s=300.0),
    "S12": partial(s12, num_sessions=48),
    "S13": partial(s13, num_programs=80),
    "baselines": partial(baselines, until_s=300.0),
    "ablations": partial(ablations, until_s=300.0, num_graphs=8, num_programs=60),
    "negative": partial(negative, num_requests=500, until_s=120.0),
}
"""The same with fewer seeds, loads and sessions; figures that are not here are quick as they are."""
