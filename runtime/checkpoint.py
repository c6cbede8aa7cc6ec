"""A program at rest on paper: its branches' tokens, text, chat, gaps, and the turns that were running. No KV, no pages.

KV is not saved: it is found again by the tokens (in the tree, or in the disk tier), or computed again. What a running
turn needs besides its tokens is its spec: noise is a function of seed and place, grammar and penalties are rebuilt from
the tokens generated so far. So a turn that goes on after a restart draws what it would have drawn.
"""

import itertools
import sys
from array import array

import msgspec

from ramet.runtime.branches import Branch, BranchTable, Gap, MarkedPlace, Program
from ramet.runtime.conversation import Conversation
from ramet.runtime.errors import BadRequest
from ramet.runtime.literals import Follows, Pending
from ramet.runtime.scheduler.token_row import ID_TYPE, TokenRow
from ramet.runtime.sealed_file import Unsealed, seal, unseal
from ramet.runtime.types import BranchHandle, GapKind, GenerateSpec, ModelCard, ProgramSpec, Usage


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose tokens they are."""

    name: str
    fingerprint: str
    """Of its weights and vocabulary; empty where the engine has none."""
    vocabulary_size: int
    dtype: str = ""
    """Told, not compared: tokens are good under any; another one may go on in other words."""


class SavedPending(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    follows: Follows
    add_bos: bool


class SavedGap(msgspec.Struct, frozen=True, kw_only=True):
    kind: GapKind
    tool: str | None
    expected_s: float | None
    elapsed_s: float
    """How long it had lasted."""


class SavedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A generation that was running."""

    spec: GenerateSpec
    num_prompt: int
    """The branch's tokens from here on are its output so far."""
    at_text_start: bool
    """It began on an empty branch, where some tokenizers drop a blank."""


class SavedMark(msgspec.Struct, frozen=True, kw_only=True):
    serial: int
    num_tokens: int
    conversation: int
    """Index in `SavedProgram.conversations`."""


class SavedBranch(msgspec.Struct, frozen=True, kw_only=True):
    branch_id: int
    tokens: bytes
    """int32, little endian."""
    pending: SavedPending
    conversation: int
    marks: list[SavedMark]
    gap: SavedGap | None
    turn: SavedTurn | None
    rewritten_at: int | None
    usage: Usage
    num_inherited: int


class SavedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """What `LocalClient.checkpoint` gives and `LocalClient.restore` takes."""

    spec: ProgramSpec
    model: ModelIdentity
    branches: list[SavedBranch]
    conversations: list[Conversation]
    """Each once: branches and marks mostly share them."""
    closed_usage: Usage
    next_branch_id: int


KIND, VERSION = b"RAMETPRG", 1


def pack(saved: SavedProgram) -> bytes:
    """As it travels: under a seal, so that what arrives is what was written, or refused."""
    content = msgspec.msgpack.encode(saved)
    return seal(KIND, VERSION, content) + content


def unpack(data: bytes) -> SavedProgram:
    """Raises BadRequest where it is torn, changed, of another version, or no checkpoint."""
    try:
        return msgspec.msgpack.decode(unseal(KIND, VERSION, data), type=SavedProgram)
    except (Unsealed, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "Nothing was restored. Take an older checkpoint, or run the program anew."
        raise BadRequest(
            expected="a whole checkpoint", got=str(error), at="$", hint=hint, code="checkpoint_corrupt"
        ) from None


def identity(card: ModelCard) -> ModelIdentity:
    return ModelIdentity(
        name=card.name, fingerprint=card.fingerprint, vocabulary_size=card.vocabulary_size, dtype=card.dtype
    )


def save_program(program: Program, turns: dict[int, SavedTurn], card: ModelCard, now_s: float) -> SavedProgram:
    """`turns` by branch id. Nothing of the program changes."""
    conversations = _Once()
    branches = [
        _save_branch(branch, turns.get(branch.handle.branch_id), conversations, now_s)
        for branch in program.branches.values()
    ]
    next_branch_id = next(program.branch_ids)
    program.branch_ids = itertools.count(next_branch_id)
    return SavedProgram(
        spec=program.spec,
        model=identity(card),
        branches=branches,
        conversations=conversations.items,
        closed_usage=program.closed_usage,
        next_branch_id=next_branch_id,
    )


class _Once:
    """Conversations by identity."""

    def __init__(self) -> None:
        self.items: list[Conversation] = []
        self._places: dict[int, int] = {}

    def place(self, conversation: Conversation) -> int:
        found = self._places.get(id(conversation))
        if found is None:
            found = self._places[id(conversation)] = len(self.items)
            self.items.append(conversation)
        return found


def _save_branch(branch: Branch, turn: SavedTurn | None, conversations: _Once, now_s: float) -> SavedBranch:
    pending, gap = branch.pending, branch.gap
    return SavedBranch(
        branch_id=branch.handle.branch_id,
        tokens=_to_bytes(branch.tokens),
        pending=SavedPending(text=pending.text, follows=pending.follows, add_bos=pending.add_bos),
        conversation=conversations.place(branch.conversation),
        marks=[
            SavedMark(serial=serial, num_tokens=place.num_tokens, conversation=conversations.place(place.conversation))
            for serial, place in branch.marks.items()
        ],
        gap=None
        if gap is None
        else SavedGap(kind=gap.kind, tool=gap.tool, expected_s=gap.expected_s, elapsed_s=max(0.0, now_s - gap.since_s)),
        turn=turn or branch.unfinished,
        rewritten_at=branch.rewritten_at,
        usage=branch.usage,
        num_inherited=branch.num_inherited,
    )


def check_model(saved: SavedProgram, card: ModelCard) -> None:
    """Tokens of one model mean nothing to another."""
    had, have = saved.model, identity(card)
    is_same = had.vocabulary_size == have.vocabulary_size and had.fingerprint == have.fingerprint
    if is_same and (had.fingerprint or had.name == have.name):
        return
    raise BadRequest(
        expected=f"the model that the checkpoint was made with ({had.name}, fingerprint {had.fingerprint or 'none'})",
        got=f"{have.name}, fingerprint {have.fingerprint or 'none'}",
        at="checkpoint.model",
        hint="Load that model, or run the program anew on this one.",
    )


def restore_program(saved: SavedProgram, table: BranchTable, vocabulary_size: int, now_s: float) -> list[BranchHandle]:
    """Open the program again, with the ids it had. Branches whose turn was running keep it as `unfinished`."""
    _check_rows(saved)
    rows = [_from_bytes(each.tokens, vocabulary_size) for each in saved.branches]
    program = table.adopt(saved.spec, saved.closed_usage, len(saved.branches))
    program.branch_ids = itertools.count(saved.next_branch_id)
    for each, tokens in zip(saved.branches, rows, strict=True):
        program.branches[each.branch_id] = _restore_branch(each, program, saved.conversations, tokens, now_s)
        table.skip_serials(max((mark.serial for mark in each.marks), default=-1))
    return [branch.handle for branch in program.branches.values()]


def _check_rows(saved: SavedProgram) -> None:
    """Rows that refer to each other: whoever wrote them may not have been us."""
    if not saved.branches:
        raise BadRequest(expected="a program with an open branch", got="none", at="checkpoint.branches")
    if not saved.spec.program_id:
        raise BadRequest(expected="a program id", got="none", at="checkpoint.spec.program_id")
    ids = [branch.branch_id for branch in saved.branches]
    if len(set(ids)) < len(ids) or not 0 <= min(ids) <= max(ids) < saved.next_branch_id:
        raise BadRequest(expected=f"different ids below {saved.next_branch_id}", got=ids, at="checkpoint.branches")
    places = range(len(saved.conversations))
    for branch in saved.branches:
        num_tokens = len(branch.tokens) // 4
        fits = len(branch.tokens) % 4 == 0 and branch.conversation in places
        fits = fits and all(0 <= mark.num_tokens <= num_tokens and mark.conversation in places for mark in branch.marks)
        if not fits or (branch.turn is not None and not 0 < branch.turn.num_prompt <= num_tokens):
            raise BadRequest(
                expected="rows that refer to each other", got=f"branch {branch.branch_id}", at="checkpoint.branches"
            )


def _restore_branch(
    saved: SavedBranch, program: Program, conversations: list[Conversation], tokens: TokenRow, now_s: float
) -> Branch:
    pending, gap = saved.pending, saved.gap
    return Branch(
        BranchHandle(program.spec.program_id or "", saved.branch_id),
        program,
        tokens=tokens,
        pending=Pending(pending.text, follows=pending.follows, add_bos=pending.add_bos),
        conversation=conversations[saved.conversation],
        marks={mark.serial: MarkedPlace(mark.num_tokens, conversations[mark.conversation]) for mark in saved.marks},
        gap=None if gap is None else Gap(gap.kind, gap.tool, gap.expected_s, now_s - gap.elapsed_s),
        unfinished=saved.turn,
        rewritten_at=saved.rewritten_at,
        usage=saved.usage,
        num_inherited=saved.num_inherited,
    )


def _to_bytes(tokens: TokenRow) -> bytes:
    ids = tokens[:]
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def _from_bytes(data: bytes, vocabulary_size: int) -> TokenRow:
    ids = array(ID_TYPE)
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    if len(ids) and not 0 <= min(ids) <= max(ids) < vocabulary_size:
        raise BadRequest(expected=f"tokens below {vocabulary_size}", got=max(ids), at="checkpoint.branches")
    return TokenRow(ids)
