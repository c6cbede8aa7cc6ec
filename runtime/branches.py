"""Programs and their branches as the engine's front keeps them: ids, text that waits, marks, and who runs. No pages.

A branch is tokens, then pending text, and a cursor into the radix tree where its KV was last seen. It holds nothing:
all of its KV may be evicted between two turns, and is found again, or computed again, by its tokens. So a fork copies
a few references, a rollback cuts a row of ids, and a closed branch has nothing to free but what only it used.
"""

import itertools
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ramet.radix.node import Cursor
from ramet.runtime.chat_template import GUARD
from ramet.runtime.conversation import Conversation
from ramet.runtime.errors import BadRequest, Busy, NotFound
from ramet.runtime.literals import Pending, TextCodec, guard
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.types import BranchHandle, GapKind, Mark, ProgramSpec, Usage

if TYPE_CHECKING:
    from ramet.runtime.checkpoint import SavedTurn


@dataclass(frozen=True, slots=True)
class MarkedPlace:
    """What a rollback to a mark restores besides the tokens."""

    num_tokens: int
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class Gap:
    """What a branch waits for."""

    kind: GapKind
    tool: str | None
    expected_s: float | None
    since_s: float


class Before(NamedTuple):
    """A branch's content at one time."""

    tokens: TokenRow
    pending: Pending
    cursor: Cursor | None
    num_known: int
    conversation: Conversation
    rewritten_at: int | None


@dataclass(slots=True, eq=False)
class Branch:
    """One path of a program. A verb at a time."""

    handle: BranchHandle
    program: "Program"
    tokens: TokenRow = field(default_factory=TokenRow)
    pending: Pending = field(default_factory=Pending)
    cursor: Cursor | None = None
    num_known: int = 0
    """Leading tokens that were computed once."""
    conversation: Conversation = field(default_factory=Conversation)
    marks: dict[int, MarkedPlace] = field(default_factory=dict)
    running: int | None = None
    """The request that writes into it now."""
    gap: Gap | None = None
    unfinished: "SavedTurn | None" = None
    """A turn that ran when the checkpoint was written from which the branch was restored; nothing else may run
    before it."""
    rewritten_at: int | None = None
    """Since the last turn, the chat template wrote history anew from this token on."""
    usage: Usage = field(default_factory=Usage)
    num_inherited: int = 0
    """Leading tokens that the branch was forked with."""
    is_closed: bool = False
    was_cut_short: bool = False
    """It was closed while it generated."""

    def snapshot(self) -> Before:
        """To come back to if what follows fails. O(1)."""
        return Before(
            self.tokens.fork(), self.pending, self.cursor, self.num_known, self.conversation, self.rewritten_at
        )

    def restore(self, before: Before) -> None:
        self.tokens, self.pending, self.cursor, self.num_known, self.conversation, self.rewritten_at = before

    def settle(self, codec: TextCodec) -> None:
        """Tokenise what waits."""
        if self.pending:
            self.tokens.extend(self.pending.ids(codec))
            self.pending = Pending(follows="text")

    def waiting(self, codec: TextCodec, *, is_template: bool = False) -> Pending:
        """The text that waits, or an empty one that knows what it follows."""
        if self.pending:
            return self.pending
        if not len(self.tokens):
            return Pending(add_bos=codec.adds_bos and not is_template)
        return Pending(follows="special" if self.tokens[-1] in codec.special_ids else "text")

    def add_text(self, guarded: str, codec: TextCodec, *, is_template: bool = False) -> None:
        self.pending = self.waiting(codec, is_template=is_template).with_text(guarded)

    def remove_end(self, guarded: str, codec: TextCodec) -> None:
        """Take text off the end: what waits first, then whole tokens; what a cut token leaves over waits as text."""
        rest = guarded[: max(0, len(guarded) - len(self.pending.text))]
        self.pending = self.pending.cut(len(self.pending.text) - len(guarded) + len(rest))
        num_bytes, num_tokens, pieces = len(rest.replace(GUARD, "").encode()), len(self.tokens), codec.all_token_bytes
        while num_bytes > 0 and num_tokens > 0:
            num_tokens -= 1
            num_bytes -= len(pieces[self.tokens[num_tokens]])
        if rest:
            split = pieces[self.tokens[num_tokens]][: -num_bytes or None] if num_bytes < 0 else b""
            self.cut_tokens(num_tokens)
            self.add_text(guard(split.decode("utf-8", "replace"), codec.special_names), codec, is_template=True)

    def cut_tokens(self, num_tokens: int) -> None:
        """Forget the tokens from `num_tokens` on, and the text after them."""
        if num_tokens < len(self.tokens):
            self.tokens.truncate(num_tokens)
        self.num_known = min(self.num_known, num_tokens)
        if self.cursor is not None and self.cursor.num_tokens > num_tokens:
            self.cursor = None
        self.pending = Pending(follows="text")


@dataclass(slots=True, eq=False)
class Program:
    """One run: its branches, and what they have cost."""

    spec: ProgramSpec
    namespace: str
    branches: dict[int, Branch] = field(default_factory=dict)
    closed_usage: Usage = field(default_factory=Usage)
    """Of branches that are closed."""
    branch_ids: "itertools.count[int]" = field(default_factory=itertools.count)


MAX_BRANCHES = 16_384
"""Open at once in one program: a slip in a number must not fill the memory."""


class BranchTable:
    """All live programs. Not thread-safe by itself: its owner holds a lock around a verb."""

    def __init__(self, max_tenant_branches: int | None = None) -> None:
        """`max_tenant_branches`: open at once in all programs of one tenant; None: no limit."""
        self._programs: dict[str, Program] = {}
        self._max_tenant_branches = max_tenant_branches
        self._serials = itertools.count()

    @property
    def num_programs(self) -> int:
        return len(self._programs)

    @property
    def num_branches(self) -> int:
        return sum(len(program.branches) for program in self._programs.values())

    def programs(self) -> list[Program]:
        return list(self._programs.values())

    def open(self, spec: ProgramSpec) -> BranchHandle:
        self._require_room(spec.tenant, 1)
        program_id = spec.program_id or f"program-{secrets.token_hex(6)}"
        if program_id in self._programs:
            if spec.join:
                return self._joined(self._programs[program_id], spec).handle
            raise BadRequest(expected="a program id that is not in use", got=program_id, at="$.program_id")
        # tenants that share no salt share the cache: isolation is a salt, and saying so costs one character
        program = Program(_with_id(spec, program_id), namespace=spec.salt)
        self._programs[program_id] = program
        return self._new_branch(program).handle

    def _joined(self, program: Program, spec: ProgramSpec) -> Branch:
        """One more branch of an open program, which has its priority and its deadline from now on. Another salt is
        another cache: such a program is not this one."""
        if spec.salt != program.namespace:
            raise BadRequest(expected="the program's own salt", got="another one", at="$.salt")
        program.spec = msgspec.structs.replace(program.spec, priority=spec.priority, deadline_s=spec.deadline_s)
        return self._new_branch(program)

    def get(self, handle: BranchHandle) -> Branch:
        program = self._programs.get(handle.program_id)
        branch = program.branches.get(handle.branch_id) if program is not None else None
        if branch is None:
            raise NotFound(f"branch {handle.branch_id} of program {handle.program_id!r} is not open (any more)")
        return branch

    def at_rest(self, handle: BranchHandle) -> Branch:
        """The branch, if no verb runs on it; any verb but this ends its gap."""
        branch = self.get(handle)
        if branch.running is not None:
            raise BadRequest(
                expected="a branch at rest",
                got="one that is generating",
                at="$.branch",
                hint="A branch runs one verb at a time: wait for the generation's end, or fork before it begins.",
            )
        if branch.unfinished is not None:
            raise BadRequest(
                expected="a branch whose last turn is complete",
                got="one that was restored in the middle of a generation",
                at="$.branch",
                hint="resume() it first: it ends what was begun.",
            )
        branch.gap = None
        return branch

    def program(self, program_id: str) -> Program:
        if program_id not in self._programs:
            raise NotFound(f"program {program_id!r} is not open")
        return self._programs[program_id]

    def adopt(self, spec: ProgramSpec, closed_usage: Usage, num_branches: int) -> Program:
        """A program that was open before, without its branches yet."""
        self._require_room(spec.tenant, num_branches)
        program_id = spec.program_id or ""
        if program_id in self._programs:
            raise BadRequest(
                expected="a program id that is not in use",
                got=program_id,
                at="checkpoint.spec.program_id",
                hint="The program is open on this engine already: close it before you restore it.",
            )
        program = self._programs[program_id] = Program(spec, namespace=spec.salt, closed_usage=closed_usage)
        return program

    def skip_serials(self, last: int) -> None:
        """New marks are numbered past those that were restored."""
        self._serials = itertools.count(max(last + 1, next(self._serials)))

    def fork(self, branch: Branch, n: int) -> list[BranchHandle]:
        room = MAX_BRANCHES - len(branch.program.branches)
        if not isinstance(n, int) or not 1 <= n <= room:
            raise BadRequest(
                expected=f"a number of branches from 1 to {room}",
                got=n,
                at="$.n",
                hint=f"A program has at most {MAX_BRANCHES} open branches; close those that are done.",
            )
        self._require_room(branch.program.spec.tenant, n)
        branch.pending = branch.pending.shared()
        return [self._child(branch).handle for _ in range(n)]

    def _require_room(self, tenant: str, num_more: int) -> None:
        limit = self._max_tenant_branches
        if limit is None:
            return
        num_open = sum(len(each.branches) for each in self._programs.values() if each.spec.tenant == tenant)
        if num_open + num_more > limit:
            said = f"the tenant has {num_open} open branches and wants {num_more} more"
            raise Busy(f"{said}; it may have {limit} (`--tenant-branches`)", retry_after_s=2.0)

    def _new_branch(self, program: Program) -> Branch:
        branch_id = next(program.branch_ids)
        branch = program.branches[branch_id] = Branch(BranchHandle(program.spec.program_id or "", branch_id), program)
        return branch

    def _child(self, parent: Branch) -> Branch:
        child = self._new_branch(parent.program)
        child.tokens, child.pending = parent.tokens.fork(), parent.pending
        child.cursor, child.num_known = parent.cursor, parent.num_known
        child.conversation = parent.conversation
        child.marks = dict(parent.marks)
        child.num_inherited = len(parent.tokens)
        return child

    def mark(self, branch: Branch) -> Mark:
        """Needs a settled branch: a mark stands between two tokens."""
        mark = Mark(len(branch.tokens), next(self._serials))
        branch.marks[mark.serial] = MarkedPlace(mark.num_tokens, branch.conversation)
        return mark

    def rollback(self, branch: Branch, mark: Mark) -> None:
        place = branch.marks.get(mark.serial)
        if place is None or place.num_tokens != mark.num_tokens:
            raise BadRequest(
                expected="a mark taken on this branch, or on one that it was forked from after the mark",
                got=mark,
                at="$.mark",
                hint="A rollback forgets the marks that were taken after the one it goes back to.",
            )
        branch.cut_tokens(place.num_tokens)
        branch.conversation = place.conversation
        branch.marks = {serial: each for serial, each in branch.marks.items() if serial <= mark.serial}

    def close(self, branch: Branch) -> None:
        branch.is_closed = True
        program = branch.program
        program.closed_usage = add_usage(program.closed_usage, branch.usage)
        program.branches.pop(branch.handle.branch_id, None)
        if not program.branches:
            self._programs.pop(branch.handle.program_id, None)


def _with_id(spec: ProgramSpec, program_id: str) -> ProgramSpec:
    return spec if spec.program_id else msgspec.structs.replace(spec, program_id=program_id)


def add_usage(left: Usage, right: Usage) -> Usage:
    return Usage(**{name: getattr(left, name) + getattr(right, name) for name in left.__struct_fields__})
