"""The written account of what a grammar enforces: one entry a keyword, each with its JSON Pointer.

Values only. Knows no keyword and no automaton: the front ends write it, the response's extension field shows it.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

Status = Literal["exact", "stricter", "deferred", "refused"]
"""exact: enforced as the specification says (annotations too: they ask for nothing).
stricter: only legal output, but not every legal output. deferred: checked after the generation. refused: not served."""

_WEIGHT: dict[Status, int] = {"exact": 0, "stricter": 1, "deferred": 2, "refused": 3}


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one keyword."""

    pointer: str
    """JSON Pointer of the keyword within the spec's own text; "" is the root."""
    keyword: str
    """The keyword's name, or a name in angle brackets for what holds for the whole grammar."""
    status: Status
    reason: str = ""
    """Why the status is not plain `exact`; empty where there is nothing to say."""


class Ledger:
    """Entries in the order of the spec's text; a second entry for a pointer keeps the weightier status."""

    def __init__(self, entries: Iterable[LedgerEntry] = ()) -> None:
        self._entries: dict[str, LedgerEntry] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: LedgerEntry) -> None:
        """Note `entry`; where the pointer has one already, the weightier stays and the reasons are joined."""
        known = self._entries.get(entry.pointer)
        self._entries[entry.pointer] = entry if known is None else _weightier(known, entry)

    def note(self, pointer: str, keyword: str, status: Status, reason: str = "") -> None:
        """`add` spelled out."""
        self.add(LedgerEntry(pointer=pointer, keyword=keyword, status=status, reason=reason))

    def with_status(self, status: Status) -> list[LedgerEntry]:
        """The entries of that status, in order."""
        return [entry for entry in self if entry.status == status]

    def entries(self) -> list[LedgerEntry]:
        """All entries, in order."""
        return list(self._entries.values())

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


def _weightier(known: LedgerEntry, new: LedgerEntry) -> LedgerEntry:
    heavy, light = (new, known) if _WEIGHT[new.status] > _WEIGHT[known.status] else (known, new)
    if not light.reason or light.reason in heavy.reason:
        return heavy
    reason = f"{heavy.reason}; {light.reason}" if heavy.reason else light.reason
    return msgspec.structs.replace(heavy, reason=reason)
