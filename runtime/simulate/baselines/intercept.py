"""The ladder of InferCept: what becomes of a context while its program waits outside. Rule of InferCept, rung by rung.

Seconds times tokens that each choice wastes, for a paused context of c tokens beside c_other running ones:

    preserve                          (expected gap) c
    discard, recomputed in chunks     T(c) c / 2 + (added step time) c_other

After each step the paused contexts that are still on the device are sorted by min(preserve, discard), largest first.
Those get the transfers that hide under a forward pass; the rest take the smaller of the two. The expected gap is what
was waited already; one rung takes the mean of its kind, another the future. A context that was decided to stay may
still be evicted by whoever needs its pages, least worth first: nothing here is locked, as it is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ramet.radix.node import Cursor
from ramet.runtime.scheduler.cache import PrefixCache
from ramet.runtime.scheduler.programs import ProgramTable, reader_name
from ramet.runtime.simulate.cost import CostModel, RowCost
from ramet.runtime.simulate.host import HostTier
from ramet.runtime.simulate.runner import ManualClock
from ramet.runtime.types import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Which choices there are."""

    swaps: bool = True
    preserves: bool = True
    expects: Literal["elapsed", "profiled", "oracle"] = "elapsed"


@dataclass(slots=True)
class _Paused:
    cursor: Cursor
    num_tokens: int
    began_s: float


class Interceptions:
    """Looks on at a run (`runner.Watcher`) and frees what its rule says."""

    def __init__(
        self,
        rung: Rung,
        cache: PrefixCache,
        table: ProgramTable,
        cost: CostModel,
        clock: ManualClock,
        host: HostTier | None,
        returns_at: Mapping[str, float],
        profiled_s: Mapping[str, float],
    ) -> None:
        """`host` None: nothing can be swapped, whatever the rung says
        `profiled_s`  mean gap of a kind, by the last part of its key"""
        self._swaps = rung.swaps and host is not None
        self._rung, self._cache, self._table, self._cost, self._clock = rung, cache, table, cost, clock
        self._host, self._returns_at, self._profiled_s = host, returns_at, profiled_s
        self._held: dict[str, _Paused] = {}
        self._owed_s = 0.0
        """Of transfers, beyond what steps had room for."""

    def paused(self, session: str, cursor: Cursor | None, num_tokens: int) -> None:
        if cursor is None:
            return
        self._held[session] = _Paused(cursor, num_tokens, self._clock.now())
        if not self._swaps and not self._rung.preserves:
            self._discard(session)

    def returned(self, session: str, request_id: int, num_known: int, num_loadable: int) -> None:
        self._held.pop(session, None)
        if self._host is not None:
            self._host.drop(session)  # it is on its way back

    def closed(self, session: str) -> None:
        self._held.pop(session, None)

    def stepped(self, plan: StepPlan, seconds: float, num_waiting: int) -> None:
        if not self._held:
            return
        rows = [RowCost(len(row.tokens), row.start) for row in plan.rows]
        others = sum(new + context for new, context in rows)
        preserve = {name: self._gap_s(name, each) * each.num_tokens for name, each in self._held.items()}
        discard = {name: self._discard_waste(each.num_tokens, rows, others) for name, each in self._held.items()}
        room_s = seconds - self._owed_s
        for name in sorted(self._held, key=lambda name: min(preserve[name], discard[name]), reverse=True):
            if self._swaps and room_s > 0:
                room_s -= self._cost.reload_s(self._held[name].num_tokens)
                self._swap(name)
            elif not (self._rung.preserves and preserve[name] <= discard[name]):
                self._discard(name)
        self._owed_s = max(0.0, -room_s)

    def _gap_s(self, name: str, paused: _Paused) -> float:
        now = self._clock.now()
        if self._rung.expects == "oracle":
            return max(0.0, self._returns_at.get(name, now) - now)
        program = self._table.find(name)
        if self._rung.expects == "profiled" and program is not None and program.gap is not None:
            return self._profiled_s.get(program.gap.key[-1], 0.0)
        return now - paused.began_s

    def _discard_waste(self, num_tokens: int, rows: list[RowCost], others: int) -> float:
        added_s = self._cost.step_s([*rows, RowCost(num_tokens, 0)]) - self._cost.step_s(rows)
        return self._cost.rebuild_s(0, num_tokens) * num_tokens / 2 + added_s * others

    def _swap(self, name: str) -> None:
        assert self._host is not None
        self._host.write(name, self._held[name].num_tokens, self._clock.now())
        self._discard(name)

    def _discard(self, name: str) -> None:
        """Off the device, as far as nobody else reads it."""
        assert self._cache.tree is not None
        self._cache.tree.detach(reader_name(name, 0))
        self._cache.prune(self._held.pop(name).cursor, 0)
