"""Even sharing, worked out: when would each program have ended if all active ones got the same all the time?"""

import bisect
import heapq
from collections.abc import Sequence

from ramet.runtime.simulate.runner import Replay
from ramet.runtime.simulate.workload import Session


def fair_ends(
    arrivals: Sequence[float], costs: Sequence[float], capacity_per_s: float, targets: Sequence[float] | None = None
) -> list[float]:
    """When each ends under generalised processor sharing; with `targets`, when sharing would have given each so much
    (at least its cost), had it stayed that long."""
    order = sorted(range(len(arrivals)), key=lambda index: arrivals[index])
    times, virtuals = [0.0], [0.0]  # the corners of virtual time
    active: list[float] = []  # virtual times at which they end
    started = [0.0] * len(arrivals)

    def corner(time: float, virtual: float) -> None:
        times.append(time)
        virtuals.append(virtual)

    def run_until(time: float) -> None:
        while active:
            due = times[-1] + (active[0] - virtuals[-1]) * len(active) / capacity_per_s
            if due > time:
                corner(time, virtuals[-1] + (time - times[-1]) * capacity_per_s / len(active))
                return
            corner(due, active[0])
            heapq.heappop(active)
        if time < float("inf"):
            corner(time, virtuals[-1])

    for index in order:
        run_until(arrivals[index])
        started[index] = virtuals[-1]
        heapq.heappush(active, virtuals[-1] + costs[index])
    run_until(float("inf"))
    wanted = costs if targets is None else targets
    return [_time_of(started[index] + wanted[index], times, virtuals, capacity_per_s) for index in range(len(arrivals))]


def _time_of(virtual: float, times: Sequence[float], virtuals: Sequence[float], capacity_per_s: float) -> float:
    """When virtual time reaches a value; after the last end, as if one program were alone."""
    place = bisect.bisect_left(virtuals, virtual)
    if place == len(virtuals):
        return times[-1] + (virtual - virtuals[-1]) / capacity_per_s
    if place == 0:
        return times[0]
    low, high = virtuals[place - 1], virtuals[place]
    share = (virtual - low) / (high - low)
    return times[place - 1] + share * (times[place] - times[place - 1])


def latest_fair_end(programs: Sequence[Session], replay: Replay) -> float:
    """By how many seconds the program that was latest, against its bound, missed it. Negative: all were within.

    The bound: when even sharing would have given it the larger of its cost and its class's mean, and one class mean
    more; and the time that one largest program takes alone. Costs are the service that each had, and capacity what the
    machine gave while it was busy.
    """
    done = {session.name: session for session in replay.sessions}
    costs = [done[program.name].service for program in programs]
    capacity = sum(costs) / replay.busy_s
    means = _class_means(programs, costs)
    targets = [
        max(means[program.workload], cost) + means[program.workload]
        for program, cost in zip(programs, costs, strict=True)
    ]
    ends = fair_ends([program.arrived_s for program in programs], costs, capacity, targets)
    largest_s = max(costs) / capacity
    return max(done[program.name].ended_s - end - largest_s for program, end in zip(programs, ends, strict=True))


def _class_means(programs: Sequence[Session], costs: Sequence[float]) -> dict[str, float]:
    by_class: dict[str, list[float]] = {}
    for program, cost in zip(programs, costs, strict=True):
        by_class.setdefault(program.workload, []).append(cost)
    return {name: sum(found) / len(found) for name, found in by_class.items()}
