"""Tells the program table, the tree and the admission what the scheduler did. The seam between turns and programs.

Whoever turns the loop (the engine, or the simulator) calls these between its verbs; nothing here decides anything, and
without it the scheduler is a scheduler of requests. It is the engine's `Listener`. Along the way it measures what the
value of waiting KV is made of: the pace of prefill, and how much longer a return waits that finds its KV gone.
"""

from collections import defaultdict
from collections.abc import Callable

from ramet.radix.node import Cursor
from ramet.radix.tree import RadixTree
from ramet.runtime.clock import Clock
from ramet.runtime.scheduler.estimator import Key, tool_key
from ramet.runtime.scheduler.programs import Program, ProgramTable, StepShare, reader_name
from ramet.runtime.scheduler.scheduler import Ended
from ramet.runtime.scheduler.sequence import Request, Sequence
from ramet.runtime.scheduler.working_set import ProgramAdmission
from ramet.runtime.types import BranchHandle, GapKind, StepPlan

RESIDENT_SHARE = 0.5
"""A program that returns to less of its KV than this gave up its place in the working set."""
IDLE_S = 3600.0
"""A program that nobody closed, and that waited so long in a gap, is forgotten."""
_SWEEP_EVERY = 256
_KEEP = 0.9
"""Of a running mean, when a new measurement comes."""
_SURE_AFTER = 64
"""Measurements."""


class Measured:
    """Running means of what only the machine can tell."""

    def __init__(
        self,
        *,
        prefill_s_per_token: float = 1e-3,
        extra_wait_s: float = 0.5,
        read_s_per_token: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Starting values, until something was measured. `read_s_per_token`: what a token costs that a lower tier has;
        None: there is none, or nothing was measured."""
        self._read_s_per_token = read_s_per_token
        self.prefill_s_per_token, self._num_prefills = prefill_s_per_token, 0
        self._waits = {True: 0.0, False: extra_wait_s}

    @property
    def extra_wait_s(self) -> float:
        """Q: how much longer a return waits that finds its KV gone."""
        return max(0.0, self._waits[False] - self._waits[True])

    def rebuild_s(self, start: int, end: int) -> float:
        """R: seconds to have tokens [start, end) again, computed at the pace of late, or read where that is faster:
        what is evicted is in the lower tier, for it was written at rest or is now."""
        read_s = self._read_s_per_token()
        pace = self.prefill_s_per_token
        return (end - start) * (pace if read_s is None else min(pace, read_s))

    @property
    def known_pace(self) -> float | None:
        """Seconds a prompt token, once the starting value weighs little in it."""
        return self.prefill_s_per_token if self._num_prefills >= _SURE_AFTER else None

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        self._num_prefills += 1
        self.prefill_s_per_token += (1.0 - _KEEP) * (seconds / num_tokens - self.prefill_s_per_token)

    def note_wait(self, seconds: float, *, was_hit: bool) -> None:
        self._waits[was_hit] += (1.0 - _KEEP) * (seconds - self._waits[was_hit])


class ProgramFeed:
    """See the module. `admission` None: nobody asks for working sets. `measured` None: nobody reads measurements."""

    def __init__(
        self,
        table: ProgramTable,
        tree: RadixTree,
        clock: Clock,
        admission: ProgramAdmission | None = None,
        measured: Measured | None = None,
    ) -> None:
        self.table, self._tree, self._clock = table, tree, clock
        self._admission, self._measured = admission, measured
        self._program_of: dict[int, str] = {}
        self._readers: dict[str, set[str]] = defaultdict(set)
        self._num_submitted = 0

    def submitted(self, request: Request) -> None:
        """Before `Scheduler.submit`."""
        now = self._clock.now()
        self._num_submitted += 1
        if self._num_submitted % _SWEEP_EVERY == 0:
            self._forget_idle(now)
        program = self.table.open(request.program, now)
        self._program_of[request.request_id] = program.program_id
        reader = reader_name(program.program_id, request.branch_id)
        comes_back = not program.turns and reader in self._readers.get(program.program_id, ())
        if comes_back and self._tree.reader_depth(reader) < RESIDENT_SHARE * program.held_tokens:
            program.is_admitted = False  # to nothing: it asks for room again, ahead of the new ones
        if not program.turns:
            self._leave_what_was_edited(program, reader, request.num_known)
        self._charge_gap(program, now)
        self.table.queue(program.program_id, request.request_id, now, len(request.tokens))
        self._revalue(program.program_id)

    def _leave_what_was_edited(self, program: Program, reader: str, num_known: int) -> None:
        """A turn that goes on from the middle of what its branch had computed has taken back the rest: that goes first,
        and the branch is a reader of the head alone."""
        old = program.cursor
        if old is None or self._readers.get(program.program_id) != {reader} or not 0 < num_known < old.num_tokens:
            return
        kept = num_known - num_known % self._tree.page_size
        if self._tree.reader_depth(reader) <= kept:
            return  # it was evicted already
        self._tree.detach(reader)
        self._tree.supersede(old, kept)
        self._tree.attach(reader, Cursor(old.node, kept))

    def stepped(self, plan: StepPlan, seconds: float) -> None:
        """After a step, before `Scheduler.commit`; the clock has moved on by `seconds`."""
        shares, num_prefilled, num_rows = [], 0, 0
        for row in plan.rows:
            num_new = len(row.tokens)
            is_prefill = row.num_sampled == 0 or num_new > row.num_sampled
            num_prefilled += num_new if is_prefill else 0
            num_rows += num_new
            program_id = self._program_of.get(row.sequence_id)
            if program_id is not None:
                shares.append(StepShare(program_id, row.sequence_id, row.start + num_new, num_new, is_prefill))
        self.table.step(shares, seconds, self._clock.now())
        if self._measured is not None and num_prefilled >= 32 and 2 * num_prefilled > num_rows:
            self._measured.note_prefill(num_prefilled, seconds)

    def ended(self, ended: Ended) -> None:
        """A turn ended. Its program waits from now on, for a tool if it called one, else for whoever speaks next."""
        request = ended.seq.request
        program_id = self._program_of.pop(request.request_id, None)
        program = self.table.find(program_id) if program_id is not None else None
        if program_id is None or program is None:
            return  # closed meanwhile
        unshared = unshared_tokens(ended.cursor, program_id)
        self.table.end_turn(program_id, request.request_id, ended.cursor, len(request.tokens), unshared)
        self._note(ended.seq)
        reader = reader_name(program_id, request.branch_id)
        if ended.cursor is not None:
            self._tree.attach(reader, ended.cursor)
            self._readers[program_id].add(reader)
        if not program.turns:
            kind: GapKind = "tool" if ended.ending.reason == "tool_calls" else "human"
            self.table.gap(program_id, kind, self._clock.now())
        self._revalue(program_id)

    def _charge_gap(self, program: Program, now: float) -> None:
        if program.gap is not None:
            depth = max(map(self._tree.reader_depth, self._readers.get(program.program_id, ())), default=0)
            left = max(0, depth - (program.held_tokens - program.unshared_tokens))
            self.table.charge_gap(program, left, self._tree.price, now)

    def totals(self) -> dict[str, float]:
        """Of all tenants' accounts, for the engine's snapshot."""
        accounts = self.table.accounts.values()
        return {
            "idle_token_seconds_total": sum(account.idle_token_s for account in accounts),
            "idle_cost_seconds_total": sum(account.idle_cost_s for account in accounts),
        }

    def _revalue(self, program_id: str) -> None:
        """It waits for something else now, or for nothing: what is kept for it is worth more or less at once."""
        for reader in self._readers.get(program_id, ()):
            self._tree.revalue(reader)

    def _note(self, seq: Sequence) -> None:
        """How its start went, for the loops that learn from it."""
        if self._admission is not None:
            num_prefilled = seq.num_prompt - max(0, seq.num_cached)
            self._admission.note_prefill(num_prefilled, seq.num_recomputed, self.table.pool_tokens)
        if self._measured is not None and seq.request.num_known > 0 and seq.admitted_s is not None:
            was_hit = seq.num_cached >= RESIDENT_SHARE * seq.request.num_known
            self._measured.note_wait(seq.admitted_s - seq.arrived_s, was_hit=was_hit)

    def gap(self, branch: BranchHandle, kind: GapKind, tool: str | None, expected_s: float | None) -> None:
        """What a branch waits for. A tool may be told with its command: "shell git log"."""
        program = self.table.find(branch.program_id)
        if program is None or program.turns:
            return
        self.table.gap(branch.program_id, kind, self._clock.now(), _gap_key(program, kind, tool), expected_s)
        self._revalue(branch.program_id)

    def wait(self, program_id: str, kind: GapKind, key: Key, expected_s: float | None = None) -> None:
        """The same with a key that the caller made."""
        if self.table.find(program_id) is not None:
            self.table.gap(program_id, kind, self._clock.now(), key, expected_s)
            self._revalue(program_id)

    def left(self, program_id: str, branch_id: int) -> None:
        """A branch was closed, its program goes on: it will not read its path again."""
        reader = reader_name(program_id, branch_id)
        readers = self._readers.get(program_id)
        if readers is not None and reader in readers:
            readers.discard(reader)
            self._tree.detach(reader)

    def closed(self, program_id: str) -> None:
        """The program ended: nobody reads its paths any more."""
        if (program := self.table.find(program_id)) is not None:
            self._charge_gap(program, self._clock.now())
        for reader in self._readers.pop(program_id, ()):
            self._tree.detach(reader)
        self.table.close(program_id)

    def _forget_idle(self, now: float) -> None:
        idle = [program for program in self.table if program.gap is not None and now - program.gap.began_s > IDLE_S]
        for program in idle:
            self.closed(program.program_id)


def _gap_key(program: Program, kind: GapKind, tool: str | None) -> Key:
    name, _, command = (tool or "").partition(" ")
    return tool_key(program.spec.workload, name or kind, command)


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
