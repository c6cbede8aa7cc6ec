"""CPU threads: as many as physical cores, and asleep while they have nothing to do. A leaf that imports no torch.

The one place that reads and sets the OpenMP environment. An OpenMP runtime reads it when it is loaded, so
`settle_environment` must run before torch is imported; where torch is there already (a notebook, a program of the
user's), only the number of threads can still be set. What the user has set stays as it is.

Idle OpenMP threads spin for milliseconds by default: a burnt core beside every step of a decode, and two engines on one
machine that slow each other down.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

_NO_SPINNING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""For every OpenMP: GNU's, and LLVM's or Intel's."""


def settle_environment(num_threads: int | None = None) -> int:
    """Set what an OpenMP runtime reads at its start; the number of threads that torch is to use.

    num_threads  None: OMP_NUM_THREADS where the user set it, else the physical cores this process may run on
    """
    for name, value in _NO_SPINNING.items():
        os.environ.setdefault(name, value)
    chosen = num_threads or _positive(os.environ.get("OMP_NUM_THREADS")) or num_physical_cores()
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", str(chosen))
    return chosen


def num_physical_cores() -> int:
    """Physical cores among the processors this process may run on, and no more than its control group pays for."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {_core_of(processor) for processor in usable}
    return max(1, min(len(cores), _quota(len(cores))))


def _core_of(processor: int) -> str:
    """The processors of one core name the same siblings."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list").read_text()
    except OSError:  # not Linux, or hidden: each processor counts
        return str(processor)


def _quota(otherwise: int) -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):  # no control group, or its limit is the word "max"
        return otherwise


def _positive(text: str | None) -> int | None:
    """OMP_NUM_THREADS may be a list, one number a nesting level."""
    first: Iterable[str] = (text or "").split(",")
    number = next(iter(first)).strip()
    return int(number) if number.isdigit() and int(number) > 0 else None
