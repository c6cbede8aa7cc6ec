"""`program.restore(file)`: a run that was saved, open again, on an engine with the same model.

The states that come back are at the place where the checkpoint was written: their variables are there, what is said to
them next goes on from there. `with` closes the program at the end, as `run` does.
"""

from collections.abc import Iterable, Mapping
from contextvars import Token
from types import TracebackType
from typing import Any

from ramet.lang.branch import Branch, ForkRecord
from ramet.lang.checkpoint import Began, Checkpoint, Ended, SavedChunk, SavedEntry, SavedSlot, SlotAt
from ramet.lang.dtype import of_type
from ramet.lang.interpreter import Lane
from ramet.lang.loop import wait, wait_async
from ramet.lang.run import CURRENT, Run, RunSettings
from ramet.lang.site import NOWHERE
from ramet.lang.state import AsyncState, State
from ramet.lang.tools import by_name
from ramet.lang.transcript import Chunk, Entry, Transcript, TurnBegin, TurnEnd
from ramet.lang.values import Slot
from ramet.runtime.client import KeepsPrograms
from ramet.runtime.errors import BadRequest, NotBuilt
from ramet.runtime.types import BranchHandle


class RestoredRun(Run):
    """Its branches come from a checkpoint."""

    def __init__(
        self, settings: RunSettings, saved: Checkpoint, tools: Iterable[Any], types: Mapping[str, Any]
    ) -> None:
        self._saved = saved
        self._tools = by_name(tools)
        self._types = types
        super().__init__(settings)

    def _begin(self) -> Branch:
        branches = _Rebuilt(self._saved, self._types).branches(self)
        for branch in branches:
            self._give_tools(branch)
        root = branches[0]
        opened = root.lane.submit(root.lane.open, "restore()", NOWHERE)
        for branch in branches[1:]:
            if not branch.lane.closed:
                branch.lane.submit(lambda: wait_async(opened), "restore()", NOWHERE)
        return root

    def _give_tools(self, branch: Branch) -> None:
        names = self._saved.branches[self.branches.index(branch)].tools
        missing = [name for name in names if name not in self._tools]
        if missing:
            raise BadRequest(
                expected=f"the tools that the program had ({', '.join(names)})",
                got=f"none called {', '.join(missing)}",
                at="restore(tools=...)",
                hint="Functions are not saved: give them again.",
            )
        branch.tools = {name: self._tools[name] for name in names}

    async def connect(self) -> BranchHandle:
        """Every lane gets its handle before the first of them goes on."""
        self.client = await self.settings.backend.connect()
        if not isinstance(self.client, KeepsPrograms):
            raise NotBuilt(
                f"restoring a program on {type(self.client).__name__}", hint="Use ramet.Engine(), or a Ramet server."
            )
        handles = {handle.branch_id: handle for handle in await self.client.restore(self._saved.program)}
        for branch, saved in zip(self.branches, self._saved.branches, strict=False):  # more may have been forked
            if saved.branch_id is not None:
                branch.lane.handle = handles[saved.branch_id]
        root = self.branches[0].lane.handle
        assert root is not None, "the root of a run that is saved is open"
        self.program_id = root.program_id
        return root


class _Rebuilt:
    """Rows into objects."""

    def __init__(self, saved: Checkpoint, types: Mapping[str, Any]) -> None:
        self._saved, self._types = saved, types
        self._slots: list[Slot] = []
        for slot in saved.slots:
            self._slots.append(self._slot(slot))
        self._chunks: list[Chunk] = []
        for chunk in saved.chunks:
            self._chunks.append(self._chunk(chunk))

    def branches(self, run: Run) -> list[Branch]:
        made: list[Branch] = []
        for saved in self._saved.branches:
            parent = None if saved.parent is None else made[saved.parent]
            branch = Branch(run, run.lane(), parent=parent)
            branch.transcript = Transcript(None if saved.base is None else self._chunks[saved.base])
            branch.transcript.chunk = self._chunks[saved.chunk]
            branch.scopes = {name: self._chunks[place] for name, place in saved.scopes.items()}
            branch.turns = [self._slots[place] for place in saved.turns]
            branch.num_calls, branch.joined, branch.last_text = saved.num_calls, saved.joined, saved.last_text
            branch.lane.take_up(saved.lane)
            if saved.branch_id is None:
                _end(branch.lane)
            made.append(branch)
        for branch, saved in zip(made, self._saved.branches, strict=True):
            branch.forks = [
                ForkRecord([made[place] for place in fork.children], fork.after_turns, NOWHERE) for fork in saved.forks
            ]
        return made

    def _chunk(self, saved: SavedChunk) -> Chunk:
        chunk = Chunk(None if saved.outer is None else self._chunks[saved.outer])
        for entry in map(self._entry, saved.entries):
            chunk.entries.append(entry)
            if isinstance(entry, TurnBegin | TurnEnd):
                chunk.turn = entry if isinstance(entry, TurnBegin) else None
        chunk.names = {name: self._slots[place] for name, place in saved.names.items()}
        return chunk

    def _entry(self, saved: SavedEntry) -> Entry:
        match saved:
            case str():
                return saved
            case SlotAt():
                return self._slots[saved.index]
            case Began():
                return TurnBegin(saved.role, tuple(saved.extra.items()))
            case Ended():
                return TurnEnd(saved.role)

    def _slot(self, saved: SavedSlot) -> Slot:
        slot = Slot(saved.name, saved.what)
        slot.tokens, slot.logprobs, slot.token_texts = saved.tokens, saved.logprobs, saved.token_texts
        slot.finished, slot.selection = saved.finished, saved.selection
        slot.samples = [self._slots[place] for place in saved.samples]
        slot.stream.append(saved.text)
        slot.text.set_result(saved.text)
        if saved.form == "plain":
            slot.fill(saved.text, saved.value)
        elif saved.name is not None and saved.name in self._types:
            decode = of_type(self._types[saved.name])[1]
            texts = [saved.text, *(sample.text.result() for sample in slot.samples)]
            values = [decode(text) for text in texts]
            slot.fill(saved.text, values if slot.samples else values[0])
        else:
            slot.fail(_untyped(saved))
        return slot


def _end(lane: Lane) -> None:
    lane.closed = True
    lane.stream.close()


def _untyped(saved: SavedSlot) -> BadRequest:
    return BadRequest(
        expected=f"the type of s[{saved.name!r}]",
        got="a checkpoint, which has its text only",
        at=f"s[{saved.name!r}]",
        hint=f'Say it when restoring: restore(..., types={{"{saved.name}": YourType}}).',
    )


class Restored:
    """A restored program, to be entered with `with` (or `async with`), which gives the root's state and closes it."""

    def __init__(self, run: RestoredRun) -> None:
        self.run = run
        self.state = State(run.root)
        """The root's."""
        self.states = [self.state, *(State(branch) for branch in run.branches[1:] if not branch.lane.closed)]
        """Of all open branches, the root's first, then forks in the order in which they were made."""
        self._token: Token[Run | None] | None = None

    def __enter__(self) -> State:
        self._enter()
        try:
            self.state.sync()
        except BaseException as error:
            self.run.abandon(error)
            self._leave(error)
            raise
        return self.state

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self.run.abandon(error)
            else:
                wait(self.run.end())
                error = self.run.unseen_error()
        finally:
            self._leave(error)
        if kind is None and error is not None:
            raise error

    async def __aenter__(self) -> AsyncState:
        self._enter()
        state = AsyncState(self.run.root)
        try:
            await state.sync()
        except BaseException as error:
            await wait_async(self.run.end(error))
            self._leave(error)
            raise
        return state

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await wait_async(self.run.end(error))
            error = error or self.run.unseen_error()
        finally:
            self._leave(error)
        if kind is None and error is not None:
            raise error

    def _enter(self) -> None:
        self._token = CURRENT.set(self.run)

    def _leave(self, error: BaseException | None) -> None:
        self.run.body_ended(error)
        if self._token is not None:
            CURRENT.reset(self._token)
