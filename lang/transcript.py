"""What a branch has said so far, as the program sees it: a log that is shared, never copied, at a fork.

A log is a chain of chunks. Fork and mark freeze the last chunk and go on in a new one whose `outer` it is, so both are
O(1), and so is a rollback. Looking a variable up walks outwards, one step per fork or mark.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ramet.lang.values import Slot


class TurnBegin(NamedTuple):
    """A message begins."""

    role: str
    extra: tuple[tuple[str, object], ...] = ()
    """Further keys of the message: name, tool_call_id."""


class TurnEnd(NamedTuple):
    """It ends."""

    role: str


Entry = str | Slot | TurnBegin | TurnEnd


class Chunk:
    """A stretch of the log. Frozen once another chunk names it as `outer`."""

    def __init__(self, outer: "Chunk | None" = None) -> None:
        self.outer = outer
        self.entries: list[Entry] = []
        self.names: dict[str, Slot] = {}
        self.turn: TurnBegin | None = outer.turn if outer is not None else None
        """The open message at the chunk's end."""


class Transcript:
    """The log of one branch."""

    def __init__(self, outer: Chunk | None = None) -> None:
        self.chunk = Chunk(outer)
        self.base = outer
        """Where this branch forked off."""

    def append(self, entry: Entry) -> None:
        self.chunk.entries.append(entry)
        if isinstance(entry, Slot) and entry.name is not None:
            self.chunk.names[entry.name] = entry
        elif isinstance(entry, TurnBegin):
            self.chunk.turn = entry
        elif isinstance(entry, TurnEnd):
            self.chunk.turn = None

    def bind(self, slot: Slot) -> None:
        """A variable that adds nothing to the text."""
        assert slot.name is not None
        self.chunk.names[slot.name] = slot

    def freeze(self) -> Chunk:
        """The log up to here, good for ever; this branch goes on behind it."""
        frozen = self.chunk
        if not frozen.entries and not frozen.names and frozen.outer is not None and frozen.outer.turn == frozen.turn:
            return frozen.outer
        self.chunk = Chunk(frozen)
        return frozen

    def cut(self, to: Chunk) -> None:
        """Go on from a frozen point: what came after it is forgotten."""
        self.chunk = Chunk(to)

    def find(self, name: str) -> Slot | None:
        for chunk in _outwards(self.chunk):
            if (slot := chunk.names.get(name)) is not None:
                return slot
        return None

    def names(self, *, own: bool = False) -> dict[str, Slot]:
        """Every variable that can be seen, newest binding first; `own`: only those since the fork."""
        seen: dict[str, Slot] = {}
        for chunk in _outwards(self.chunk, until=self.base if own else None):
            for name, slot in chunk.names.items():
                seen.setdefault(name, slot)
        return seen

    def entries(self, *, own: bool = False, since: Chunk | None = None) -> list[Entry]:
        """The log in order; `own`: only what came since the fork, `since`: since a frozen point."""
        chunks = list(_outwards(self.chunk, until=self.base if own else since))
        return [entry for chunk in reversed(chunks) for entry in chunk.entries]


def _outwards(chunk: Chunk | None, until: Chunk | None = None) -> Iterator[Chunk]:
    while chunk is not None and chunk is not until:
        yield chunk
        chunk = chunk.outer


def slots(entries: list[Entry]) -> list[Slot]:
    """The generated parts of a stretch."""
    return [entry for entry in entries if isinstance(entry, Slot)]


def written(entries: list[Entry]) -> str:
    """The text of a stretch, without the marks of the chat template. Every slot in it must be filled."""
    return "".join(map(_text, entries))


def _text(entry: Entry) -> str:
    if isinstance(entry, Slot):
        return entry.text.result()
    return entry if isinstance(entry, str) else ""


def messages(entries: list[Entry]) -> list[dict[str, object]]:
    """The chat messages of a log; text outside of roles is none. Every slot in it must be filled."""
    found: list[dict[str, object]] = []
    start: int | None = None
    for index, entry in enumerate([*entries, TurnEnd("")]):
        if isinstance(entry, TurnBegin):
            start = index
        elif isinstance(entry, TurnEnd) and start is not None:
            opening = entries[start]
            assert isinstance(opening, TurnBegin)
            content = written(entries[start + 1 : index])
            found.append({"role": opening.role, "content": content, **dict(opening.extra)})
            start = None
    return found
