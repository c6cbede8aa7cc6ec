"""Who owns which open program, and when an abandoned one is closed: a client that vanishes keeps no branches."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ramet.runtime.errors import Busy, NotFound


@dataclass(slots=True)
class OpenProgram:
    """An open program as the front knows it."""

    key: str
    """Hash of the API key that opened it: nobody else may touch it."""
    used_s: float
    num_running: int = 0


class OpenPrograms:
    """Bounded; the least recently used come first."""

    def __init__(self, *, max_programs: int, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._programs: OrderedDict[str, OpenProgram] = OrderedDict()
        self._max_programs, self._idle_s, self._clock = max_programs, idle_s, clock

    def __len__(self) -> int:
        return len(self._programs)

    def abandoned(self) -> list[str]:
        """Programs that nobody has touched for too long; the caller closes them, and tells `remove`."""
        limit = self._clock() - self._idle_s
        return [name for name, program in self._programs.items() if program.used_s < limit and not program.num_running]

    def require_room(self) -> None:
        if len(self._programs) >= self._max_programs:
            raise Busy(f"{len(self._programs)} programs are open, the limit of this server", retry_after_s=5)

    def add(self, program_id: str, key: str) -> None:
        self._programs[program_id] = OpenProgram(key, self._clock())

    def use(self, program_id: str, key: str) -> OpenProgram:
        """The program, if it is this key's. NotFound tells strangers and latecomers the same."""
        program = self._programs.get(program_id)
        if program is None or program.key != key:
            raise NotFound(f"program {program_id!r} is not open (any more)")
        program.used_s = self._clock()
        self._programs.move_to_end(program_id)
        return program

    def remove(self, program_id: str) -> None:
        self._programs.pop(program_id, None)
