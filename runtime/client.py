"""EngineClient: the one protocol that the language, the server and the tools speak to an engine, wherever it runs.

In a script the engine is a thread of this process; under `ramet serve` it is another process behind msgspec frames;
over HTTP it is `/v1/programs`. All three have these verbs, and a program can't tell which it got. Errors are
`RametError`s; a generation's error is raised from its iterator after the events before it.
"""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ramet.runtime.types import (
    BranchHandle,
    EngineStatistics,
    Event,
    GapKind,
    GenerateSpec,
    Mark,
    ModelCard,
    Piece,
    ProgramSpec,
    Selection,
    SelectMethod,
    Usage,
)

if TYPE_CHECKING:
    from ramet.runtime.checkpoint import SavedProgram


class EngineClient(Protocol):
    """Verbs on branches. A branch runs one verb at a time; different branches run side by side."""

    @property
    def card(self) -> ModelCard: ...

    async def open(self, program: ProgramSpec) -> BranchHandle:
        """A new program with one empty branch."""
        ...

    async def extend(self, branch: BranchHandle, pieces: Sequence[Piece]) -> None:
        """Append. Cheap: literals are joined, and tokenised once, when a generation, a select or a mark needs them.

        Turns: a MessagesPiece appends whole messages. `add_generation_prompt` leaves an assistant's turn open after
        them, `continue_final_message` leaves their last message open. While a turn is open, TextPiece, TokensPiece,
        generate and select write into it (the words of an open assistant's turn are its message's content). The next
        MessagesPiece closes it first, with the template's own end of turn, not written twice where the model has
        written it; a MessagesPiece without messages and flags does only that.
        """
        ...

    def generate(self, branch: BranchHandle, spec: GenerateSpec) -> AsyncIterator[Event]:
        """Generate on the branch; its tokens stay on it. Closing the iterator early aborts, freeing in one step."""
        ...

    async def select(
        self,
        branch: BranchHandle,
        choices: Sequence[str],
        method: SelectMethod = "total",
        temperature: float = 0.0,
        seed: int | None = None,
        append: bool = True,
    ) -> Selection:
        """Score all choices in one pass over their token trie; append the winner's tokens to the branch."""
        ...

    async def fork(self, branch: BranchHandle, n: int) -> list[BranchHandle]:
        """n branches that continue from here: O(1), nothing is copied but ids."""
        ...

    async def mark(self, branch: BranchHandle) -> Mark: ...

    async def rollback(self, branch: BranchHandle, mark: Mark) -> None:
        """Cut back to the mark: tokens, text, grammar and messages."""
        ...

    async def gap(
        self, branch: BranchHandle, kind: GapKind, tool: str | None = None, expected_s: float | None = None
    ) -> None:
        """The branch waits for a tool, a human or a join: its KV stays by value, not by lock. The next verb ends it."""
        ...

    async def close(self, branch: BranchHandle, *, program: bool = False) -> Usage:
        """Close one branch, or its whole program; frees what only it used, and aborts what runs."""
        ...

    async def tokens(self, branch: BranchHandle) -> list[int]:
        """The branch's token ids, pending literals included."""
        ...

    async def text(self, branch: BranchHandle) -> str:
        """The branch's text as the model sees it, special tokens spelled out."""
        ...

    async def tokenize(self, text: str, *, allow_special: bool = False, add_bos: bool = False) -> list[int]: ...

    async def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False) -> str: ...

    async def statistics(self) -> EngineStatistics: ...

    async def flush_cache(self) -> int:
        """Drop every cached page that nobody leases; returns how many."""
        ...


@runtime_checkable
class KeepsPrograms(Protocol):
    """What an EngineClient may have besides: programs survive the engine's process."""

    async def checkpoint(self, program_id: str) -> "SavedProgram":
        """All of a program but its KV, between two steps. Turns that run are recorded as far as they are, and run
        on."""
        ...

    async def restore(self, program: "SavedProgram") -> list[BranchHandle]:
        """Open it again on an engine with the same model; its branches have the ids that they had. Raises BadRequest
        for another model, or where the program is open already."""
        ...

    def resume(self, branch: BranchHandle) -> AsyncIterator[Event]:
        """End a turn that ran when the checkpoint was written: its events from the beginning, the tokens that it had
        generated in the first delta."""
        ...
