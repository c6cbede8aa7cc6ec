"""Memory-time that did no good, in token-seconds: the measure that InferCept's ladder is told in.

recomputed  a step's time that computing lost contexts again adds, times all tokens that run beside; and while a context
            is being rebuilt, the context itself
moved       contexts on their way from the host, which hold their pages already
held        what sessions in a gap keep on the device. Where nothing waits it is kept from nobody: cached pages are
            evictable, so only `held_from_others`, in steps beside which some turn waits, is counted as waste
"""

from ramet.radix.node import Cursor
from ramet.radix.tree import RadixTree
from ramet.runtime.scheduler.programs import reader_name
from ramet.runtime.simulate.cost import CostModel
from ramet.runtime.types import StepPlan


class WasteMeter:
    """Looks on at a run (`runner.Watcher`)."""

    def __init__(self, tree: RadixTree, cost: CostModel) -> None:
        self._tree, self._cost = tree, cost
        self._before: dict[int, tuple[int, int]] = {}
        """Request -> tokens computed before, tokens that a lower tier has."""
        self._waiting: set[str] = set()
        self.recomputed = self.moved = self.held = self.held_from_others = 0.0

    def paused(self, session: str, cursor: Cursor | None, num_tokens: int) -> None:
        self._waiting.add(session)

    def returned(self, session: str, request_id: int, num_known: int, num_loadable: int) -> None:
        self._waiting.discard(session)
        self._before[request_id] = (num_known, num_loadable)
        num_moved = num_loadable - self._tree.reader_depth(reader_name(session, 0))
        self.moved += max(0, num_moved) * self._cost.reload_s(max(0, num_moved))

    def closed(self, session: str) -> None:
        self._waiting.discard(session)

    def stepped(self, plan: StepPlan, seconds: float, num_waiting: int) -> None:
        loaded: dict[int, int] = {}
        skipped: dict[int, int] = {}
        running = rebuilding = 0
        for row in plan.rows:
            end = row.start + len(row.tokens)
            num_known, num_loadable = self._before.get(row.sequence_id, (0, 0))
            from_host = max(0, min(num_loadable, end) - row.start)
            again = max(0, min(num_known, end) - max(row.start, num_loadable))
            running += end
            loaded[row.sequence_id], skipped[row.sequence_id] = from_host, from_host + again
            rebuilding += end if again else 0
        if rebuilding:
            added_s = self._cost.plan_s(plan, loaded) - self._cost.plan_s(plan, skipped)
            self.recomputed += added_s * (running - rebuilding) + seconds * rebuilding
        held = seconds * sum(self._tree.reader_depth(reader_name(session, 0)) for session in self._waiting)
        self.held += held
        self.held_from_others += held if num_waiting else 0.0

    @property
    def wasted(self) -> float:
        return self.recomputed + self.moved + self.held_from_others
