"""Branches kept open between the requests of one conversation, so that the engine sees turns and gaps, not strangers.

A client resends its whole history. Where its tokens go on exactly from a kept branch, only the new ones travel to the
engine, which resumes its place in the radix tree and knows how long the conversation waited, and for what. A kept
branch holds no memory: in a gap, KV stays by value. Where the history was changed, the branch is closed and a fresh one
takes its place; what both share is found in the tree as ever.
"""

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramet.runtime.client import EngineClient
from ramet.runtime.errors import RametError
from ramet.runtime.types import BranchHandle, GapKind


@dataclass(frozen=True, slots=True)
class Kept:
    """A branch at rest."""

    branch: BranchHandle
    tokens: Sequence[int]
    """All of its tokens."""
    kept_s: float


class KeptBranches:
    """One branch a program, the last to end its turn. Bounded; the longest at rest go first."""

    def __init__(
        self, engine: EngineClient, *, max_branches: int, idle_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._max_branches, self._idle_s, self._clock = max_branches, idle_s, clock

    def __len__(self) -> int:
        return len(self._kept)

    async def take(self, program_id: str, prompt: Sequence[int]) -> Kept | None:
        """The program's branch, if the prompt goes on from it; from now on it is the caller's."""
        kept = self._kept.pop(program_id, None)
        if kept is None:
            return None
        if len(prompt) > len(kept.tokens) and list(prompt[: len(kept.tokens)]) == list(kept.tokens):
            return kept
        await self._close(kept)
        return None

    async def put(self, program_id: str, branch: BranchHandle) -> None:
        """Keep a branch whose turn has ended; the one kept before it is closed."""
        tokens = await self._engine.tokens(branch)
        before = self._kept.pop(program_id, None)
        self._kept[program_id] = Kept(branch, tokens, self._clock())
        stale = [] if before is None else [before]
        while self._kept and (len(self._kept) > self._max_branches or self._is_idle(next(iter(self._kept.values())))):
            stale.append(self._kept.popitem(last=False)[1])
        for kept in stale:
            await self._close(kept)

    async def gap(self, program_id: str, kind: GapKind, tool: str | None) -> None:
        """Say what the program waits for."""
        kept = self._kept.get(program_id)
        if kept is not None:
            with contextlib.suppress(RametError):  # it may have gone on, or the engine may be gone
                await self._engine.gap(kept.branch, kind, tool)

    def _is_idle(self, kept: Kept) -> bool:
        return self._clock() - kept.kept_s > self._idle_s

    async def _close(self, kept: Kept) -> None:
        with contextlib.suppress(RametError):
            await self._engine.close(kept.branch)
