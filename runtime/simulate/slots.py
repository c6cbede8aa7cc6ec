"""A machine with a few slots and programs of equal turns; no memory, batching or gaps: what an order does by itself.

For the two figures that isolate order: S3 (a toy of four programs) and S9 (1,500 sessions at load .9). Orders are those
of the scheduler: they rank a program by what it has had, when it came, and what its class is like.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ramet.runtime.scheduler.fairshare import FairShare, VirtualTime

Rank = Callable[["SlotProgram"], tuple[float, ...]]
"""The smallest goes first."""


@dataclass(slots=True, eq=False)
class SlotProgram:
    """A program of `num_turns` turns of one second each."""

    arrived_s: float
    num_turns: int
    kind: str = ""
    attained: int = 0
    share: FairShare | None = field(default=None)
    serial: int = 0


class Slack(NamedTuple):
    """Fair share on top of an order: `slack(program)` in service, `cost(program)` predicted."""

    slack: Callable[[SlotProgram], float]
    cost: Callable[[SlotProgram], float]


def run_slots(programs: Sequence[SlotProgram], rank: Rank, *, num_slots: int, fair: Slack | None = None) -> list[float]:
    """Completion time less arrival of each program, in order. A turn runs to its end; then its program waits again."""
    return _SlotMachine(programs, rank, num_slots, fair).run()


class _SlotMachine:
    def __init__(self, programs: Sequence[SlotProgram], rank: Rank, num_slots: int, fair: Slack | None) -> None:
        self._programs, self._rank, self._free, self._fair = programs, rank, num_slots, fair
        self._num_slots, self._virtual, self._now = num_slots, VirtualTime(), 0.0
        self._serial = itertools.count()
        self._ready: list[tuple[tuple[float, ...], int, SlotProgram]] = []
        self._due: list[tuple[float, float, int, SlotProgram]] = []  # virtual time from which a ready one starves
        self._starving: list[tuple[float, int, SlotProgram]] = []
        self._waiting: set[int] = set()  # serials of entries that still stand in a line

    def run(self) -> list[float]:
        events = [(program.arrived_s, index, True) for index, program in enumerate(self._programs)]
        heapq.heapify(events)
        done = [0.0] * len(self._programs)
        places = {id(program): index for index, program in enumerate(self._programs)}
        while events:
            now = events[0][0]
            self._virtual.advance((now - self._now) * min(self._num_slots, self._virtual.num_active))
            self._now = now
            while events and events[0][0] == now:
                _, index, is_arrival = heapq.heappop(events)
                program = self._programs[index]
                if is_arrival:
                    program.share = self._virtual.join()
                    self._line_up(program)
                    continue
                program.attained += 1
                self._free += 1
                if program.attained == program.num_turns:
                    done[index] = now - program.arrived_s
                    self._virtual.leave(program.share)  # type: ignore[arg-type]
                else:
                    self._line_up(program)
            while self._free and (first := self._next()) is not None:
                self._free -= 1
                heapq.heappush(events, (now + 1.0, places[id(first)], False))
        return done

    def _line_up(self, program: SlotProgram) -> None:
        serial = program.serial = next(self._serial)
        self._waiting.add(serial)
        heapq.heappush(self._ready, (self._rank(program), serial, program))
        if self._fair is not None and program.share is not None:
            due = program.share.finish(self._fair.cost(program)) + self._fair.slack(program)
            heapq.heappush(self._due, (due, program.arrived_s, serial, program))

    def _next(self) -> SlotProgram | None:
        while self._due and self._due[0][0] < self._virtual.now:
            _, arrived, serial, program = heapq.heappop(self._due)
            if serial in self._waiting:
                heapq.heappush(self._starving, (arrived, serial, program))
        return self._pop(self._starving) or self._pop(self._ready)

    def _pop(self, line: list[Any]) -> SlotProgram | None:
        """The first of a line that still stands in it; an entry ends with its serial and its program."""
        while line:
            *_, serial, program = heapq.heappop(line)
            if serial in self._waiting:
                self._waiting.remove(serial)
                assert isinstance(program, SlotProgram)
                return program
        return None
