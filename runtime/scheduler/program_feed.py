"""Tells the program table, the tree and the admission what the scheduler did. The seam between turns and programs.

Whoever turns the loop (the engine, or the simulator) calls these between its verbs; nothing here decides anything, and
without it the scheduler is a scheduler of requests.
"""

from ramet.radix.node import Cursor
from ramet.radix.tree import RadixTree
from ramet.runtime.clock import Clock
from ramet.runtime.scheduler.estimator import Key
from ramet.runtime.scheduler.programs import ProgramTable, StepShare
from ramet.runtime.scheduler.scheduler import Ended
from ramet.runtime.scheduler.sequence import Request
from ramet.runtime.scheduler.working_set import ProgramAdmission
from ramet.runtime.types import GapKind, StepPlan

RESIDENT_SHARE = 0.5
"""A program that returns to less of its KV than this gave up its place in the working set."""


class ProgramFeed:
    """See the module. `admission` None: nobody asks for working sets."""

    def __init__(
        self, table: ProgramTable, tree: RadixTree, clock: Clock, admission: ProgramAdmission | None = None
    ) -> None:
        self.table, self._tree, self._clock, self._admission = table, tree, clock, admission
        self._program_of: dict[int, str] = {}

    def submitted(self, request: Request) -> None:
        """Before `Scheduler.submit`."""
        now = self._clock.now()
        program = self.table.open(request.program, now)
        self._program_of[request.request_id] = program.program_id
        if self._tree.reader_depth(program.program_id) < RESIDENT_SHARE * program.held_tokens:
            program.is_admitted = False  # it comes back to nothing: it asks for room again, ahead of the new ones
        self.table.queue(program.program_id, request.request_id, now, len(request.tokens))

    def stepped(self, plan: StepPlan, seconds: float) -> None:
        """After a step, before `Scheduler.commit`; the clock has moved on by `seconds`."""
        now = self._clock.now()
        shares = []
        planned = set()
        for row in plan.rows:
            program_id = self._program_of.get(row.sequence_id)
            if program_id is not None:
                planned.add(row.sequence_id)
                num_new, is_prefill = len(row.tokens), row.num_sampled == 0 or len(row.tokens) > row.num_sampled
                shares.append(StepShare(program_id, row.sequence_id, row.start + num_new, num_new, is_prefill))
        self.table.step(shares, seconds, now)

    def ended(self, ended: Ended, gap: tuple[GapKind, Key, float | None] | None) -> None:
        """A turn ended, and what its program waits for now; no gap: it closes."""
        request = ended.seq.request
        program_id = self._program_of.pop(request.request_id)
        unshared = unshared_tokens(ended.cursor, program_id)
        self.table.end_turn(program_id, request.request_id, ended.cursor, len(request.tokens), unshared)
        if self._admission is not None:
            num_prefilled = ended.seq.num_prompt - max(0, ended.seq.num_cached)
            self._admission.note_prefill(num_prefilled, ended.seq.num_recomputed, self.table.pool_tokens)
        if gap is None:
            self.closed(program_id)
            return
        kind, key, expected_s = gap
        self.table.gap(program_id, kind, self._clock.now(), key, expected_s)
        if ended.cursor is not None:
            self._tree.attach(program_id, ended.cursor)

    def closed(self, program_id: str) -> None:
        """The program ended: nobody reads its path any more."""
        self._tree.detach(program_id)
        self.table.close(program_id)


def unshared_tokens(cursor: Cursor | None, owner: str) -> int:
    """Tokens at the end of a path that only its owner uses: what evicting it would free."""
    if cursor is None:
        return 0
    node = cursor.node
    while (
        node.parent is not None
        and node.owner == owner
        and all(child.owner == owner for child in node.children.values())
    ):
        node = node.parent
    return max(0, cursor.num_tokens - node.end)
