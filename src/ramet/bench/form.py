"""The one form of every benchmark: figures, bars, the commit and the machine, as one JSON object.

A benchmark is a module with `measure(options) -> Measured`; it proves its own correctness first and raises `NotCorrect`
where that fails, for a number beside a wrong answer is worse than none. `report` turns what was measured into
`{"bench", "commit", "machine", "figures": {name: number}, "bars": [{"name", "value", "bar", "holds"}]}`.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal


class NotCorrect(Exception):
    """The benchmark's own check failed: there is nothing to report. The message says what differed."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure has to reach."""

    name: str
    bar: float
    sense: Literal["<=", ">="]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a benchmark found."""

    figures: Mapping[str, float]
    """Name -> number; the unit stands in the name."""
    bars: Sequence[Bar] = ()
    """Those of the figures that must reach something; a bar without its figure is an error."""
    notes: Mapping[str, object] = field(default_factory=dict)
    """Reasons, lists, settings: anything that explains the figures."""


def report(name: str, measured: Measured) -> dict[str, object]:
    """The JSON object of one benchmark."""
    return {
        "bench": name,
        "commit": commit(),
        "machine": machine(),
        "figures": dict(measured.figures),
        "bars": [_judged(bar, measured.figures) for bar in measured.bars],
        **({"notes": dict(measured.notes)} if measured.notes else {}),
    }


def to_json(result: Mapping[str, object]) -> str:
    """One line, numbers as they are."""
    return json.dumps(result, ensure_ascii=False, allow_nan=False)


def commit() -> str:
    """The commit of the source tree this code runs from; "unknown" for an installed wheel."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=Path(__file__).resolve().parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return git.stdout.strip() or "unknown"


def machine() -> dict[str, object]:
    """What ran it: processor, its vector units that matter here, usable cores, memory, Python."""
    info = _cpuinfo()
    flags = set(info.get("flags", "").split())
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
    return {
        "cpu": info.get("model name", platform.processor() or platform.machine()),
        "vector": [flag for flag in wanted if flag in flags],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
    }


def _judged(bar: Bar, figures: Mapping[str, float]) -> dict[str, object]:
    value = figures[bar.name]
    holds = value <= bar.bar if bar.sense == "<=" else value >= bar.bar
    return {**asdict(bar), "value": value, "holds": holds}


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
