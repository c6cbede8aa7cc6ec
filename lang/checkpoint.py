"""`s.checkpoint(file)`: a run on paper. Its log and variables, its lanes' open messages, what the engine keeps of it.

Saved are texts, tokens, plain values and names; no code. So a file from elsewhere can run nothing, and a value that is
neither plain nor readable from its own text (an open socket, an object of yours) is refused by name. Python's own
place in the function is not saved: what is restored is the state, and whoever restores it says what comes next.
"""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ramet.lang.branch import Branch
from ramet.lang.interpreter import LaneTurn
from ramet.lang.loop import wait_async
from ramet.lang.transcript import Chunk, Entry, TurnBegin, TurnEnd
from ramet.lang.values import Slot
from ramet.runtime.checkpoint import SavedProgram
from ramet.runtime.client import KeepsPrograms
from ramet.runtime.errors import BadRequest, EngineFailed, NotBuilt
from ramet.runtime.sealed_file import Unsealed, read_sealed, write_sealed
from ramet.runtime.types import Finished, Selection, TokenLogprob

if TYPE_CHECKING:
    from ramet.lang.run import Run

KIND, VERSION = b"RAMETCKP", 1
PathLike = str | os.PathLike[str]
_PLAIN = (type(None), bool, float, str, bytes)
_ROUNDS = 100
"""Other branches may go on while we wait for them: so often we wait again."""


class SlotAt(msgspec.Struct, frozen=True, tag="slot"):
    index: int


class Began(msgspec.Struct, frozen=True, tag="begin"):
    role: str
    extra: dict[str, object]


class Ended(msgspec.Struct, frozen=True, tag="end"):
    role: str


SavedEntry = str | SlotAt | Began | Ended


class SavedChunk(msgspec.Struct, frozen=True, kw_only=True):
    outer: int | None
    entries: list[SavedEntry]
    names: dict[str, int]


class SavedSlot(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None
    what: str
    text: str
    value: object
    form: Literal["plain", "typed"]
    """typed: the value is read from the text again, by the type that the caller names."""
    tokens: list[int]
    logprobs: list[TokenLogprob]
    token_texts: dict[int, str] | None
    finished: Finished | None
    selection: Selection | None
    samples: list[int]


class SavedFork(msgspec.Struct, frozen=True, kw_only=True):
    children: list[int]
    after_turns: int


class SavedBranch(msgspec.Struct, frozen=True, kw_only=True):
    branch_id: int | None
    """The engine's; None: it is closed."""
    parent: int | None
    chunk: int
    base: int | None
    scopes: dict[str, int]
    turns: list[int]
    forks: list[SavedFork]
    tools: list[str]
    num_calls: int
    joined: bool
    last_text: str | None
    lane: LaneTurn


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds."""

    name: str
    """Of the program's function."""
    program: SavedProgram
    defaults: dict[str, object]
    chunks: list[SavedChunk]
    slots: list[SavedSlot]
    branches: list[SavedBranch]
    """The root first, parents before children."""


async def checkpoint(run: "Run", path: PathLike) -> None:
    """Wait until everything said so far is done, on all branches, then write."""
    for _ in range(_ROUNDS):
        await _quiet(run)
        before = _said(run)
        program = await _client(run).checkpoint(run.program_id or "")
        if _said(run) == before and all(branch.lane.is_idle for branch in run.branches):
            content = msgspec.msgpack.encode(_Saver(run).save(program))
            await asyncio.to_thread(write_sealed, Path(path), KIND, VERSION, content)
            return
    raise BadRequest(
        expected="branches that rest for a moment",
        got="branches that never did",
        at="s.checkpoint()",
        hint="Wait for the other branches first (sync(), join()).",
    )


def read(path: PathLike) -> Checkpoint:
    """Raises CheckpointCorrupt where the file is torn, changed, of another version, or no checkpoint."""
    try:
        return msgspec.msgpack.decode(read_sealed(Path(path), KIND, VERSION), type=Checkpoint)
    except OSError as error:
        raise BadRequest(expected="a readable checkpoint", got=error.strerror, at=str(path)) from None
    except (Unsealed, msgspec.DecodeError) as error:
        raise CheckpointCorrupt(
            expected="a whole checkpoint",
            got=str(error),
            at=str(path),
            hint="Nothing was restored. Take an older checkpoint, or run the program anew.",
        ) from None


class CheckpointCorrupt(BadRequest):
    """A checkpoint that is not what was written."""

    code = "checkpoint_corrupt"


def _client(run: "Run") -> KeepsPrograms:
    if run.client is None:
        raise EngineFailed("the program was never opened")
    if not isinstance(run.client, KeepsPrograms):
        raise NotBuilt(
            f"a checkpoint on {type(run.client).__name__}",
            hint="Run the program on ramet.Engine(), or on a Ramet server.",
        )
    return run.client


async def _quiet(run: "Run") -> None:
    """Everything said so far is done; the first error is raised."""
    open_branches = [branch for branch in run.branches if not branch.lane.closed]
    await asyncio.gather(*(wait_async(branch.drained()) for branch in open_branches))


def _said(run: "Run") -> list[tuple[Chunk, int, int]]:
    """Changes where a program says something."""
    chunks = [branch.transcript.chunk for branch in run.branches]
    return [(chunk, len(chunk.entries), len(chunk.names)) for chunk in chunks]


class _Numbered(NamedTuple):
    """Objects and their places in a list of what was saved of them."""

    places: dict[int, int]
    saved: list[Any]


class _Saver:
    """Turns a run's objects into rows that refer to each other by number. While nothing changes."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._chunks, self._slots = _Numbered({}, []), _Numbered({}, [])
        self._branches = {id(branch): place for place, branch in enumerate(run.branches)}

    def save(self, program: SavedProgram) -> Checkpoint:
        branches = [self._branch(branch) for branch in self._run.branches]
        return Checkpoint(
            name=self._run.name,
            program=program,
            defaults={name: _plain(_listed(value), f"run({name}=...)") for name, value in self._run.defaults.items()},
            chunks=self._chunks.saved,
            slots=self._slots.saved,
            branches=branches,
        )

    def _branch(self, branch: Branch) -> SavedBranch:
        transcript, lane = branch.transcript, branch.lane
        return SavedBranch(
            branch_id=None if lane.closed or lane.handle is None else lane.handle.branch_id,
            parent=None if branch.parent is None else self._branches[id(branch.parent)],
            base=None if transcript.base is None else self._chunk(transcript.base),
            chunk=self._chunk(transcript.chunk),
            scopes={name: self._chunk(chunk) for name, chunk in branch.scopes.items()},
            turns=[self._slot(slot) for slot in branch.turns],
            forks=[
                SavedFork(children=[self._branches[id(child)] for child in fork.children], after_turns=fork.after_turns)
                for fork in branch.forks
            ],
            tools=list(branch.tools),
            num_calls=branch.num_calls,
            joined=branch.joined,
            last_text=branch.last_text,
            lane=lane.turn(),
        )

    def _chunk(self, chunk: Chunk) -> int:
        """The chunks outside of it get their places first: a long chain must not recurse."""
        chain: list[Chunk] = []
        above: Chunk | None = chunk
        while above is not None and id(above) not in self._chunks.places:
            chain.append(above)
            above = above.outer
        for each in reversed(chain):
            saved = SavedChunk(
                outer=None if each.outer is None else self._chunks.places[id(each.outer)],
                entries=[self._entry(entry) for entry in each.entries],
                names={name: self._slot(slot) for name, slot in each.names.items()},
            )
            self._chunks.places[id(each)] = len(self._chunks.saved)
            self._chunks.saved.append(saved)
        return self._chunks.places[id(chunk)]

    def _entry(self, entry: Entry) -> SavedEntry:
        match entry:
            case str():
                return entry
            case Slot():
                return SlotAt(self._slot(entry))
            case TurnBegin():
                return Began(entry.role, {key: _plain(value, f"{entry.role}.{key}") for key, value in entry.extra})
            case TurnEnd():
                return Ended(entry.role)

    def _slot(self, slot: Slot) -> int:
        place = self._slots.places.get(id(slot))
        if place is None:
            samples = [self._slot(sample) for sample in slot.samples]
            place = self._slots.places[id(slot)] = len(self._slots.saved)
            self._slots.saved.append(_saved_slot(slot, samples))
        return place


def _saved_slot(slot: Slot, samples: list[int]) -> SavedSlot:
    value = slot.value.result()
    is_typed = not is_plain(value) and slot.decoder is not str
    return SavedSlot(
        name=slot.name,
        what=slot.what,
        text=slot.text.result(),
        value=None if is_typed else _plain(value, f"s[{slot.name!r}]"),
        form="typed" if is_typed else "plain",
        tokens=slot.tokens,
        logprobs=slot.logprobs,
        token_texts=slot.token_texts,
        finished=slot.finished,
        selection=slot.selection,
        samples=samples,
    )


def _listed(value: object) -> object:
    """Options take tuples and lists alike."""
    return list(value) if isinstance(value, tuple) else value


def is_plain(value: object) -> bool:
    """Does it come back from a file as it was?"""
    if type(value) is int:
        return -(2**63) <= value < 2**64
    if type(value) is list:
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and is_plain(each) for key, each in value.items())
    return type(value) in _PLAIN


def _plain(value: object, at: str) -> object:
    if not is_plain(value):
        raise BadRequest(
            expected="None, a number, text, bytes, or lists and dicts (with text keys) of these",
            got=value,
            at=at,
            hint="Other objects can't be saved: keep what they are made of in the variable, and make them anew.",
        )
    return value
