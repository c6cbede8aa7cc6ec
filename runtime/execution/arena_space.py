"""Who lies where in the one buffer that holds the grammars of a device. Ints only.

First fit; what nobody uses stays until its place is wanted, the least recently used going first. Nothing that is in use
is ever moved, since a step that was captured reads it where it lies.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Block:
    offset: int
    size: int
    num_users: int = 0


class ArenaSpace:
    """Blocks of words by key."""

    def __init__(self, num_words: int) -> None:
        self.num_words = num_words
        self._blocks: OrderedDict[Hashable, _Block] = OrderedDict()

    def take(self, key: Hashable, size: int) -> tuple[int, bool] | None:
        """Use the key's block: its offset, and whether it is new and must be filled. None: there is no room."""
        known = self._blocks.get(key)
        is_new = known is None
        if known is None:
            offset = self._make_room(size)
            if offset is None:
                return None
            known = self._blocks[key] = _Block(offset, size)
        known.num_users += 1
        self._blocks.move_to_end(key)
        return known.offset, is_new

    def release(self, key: Hashable) -> None:
        """One user less. The block stays while its place is not wanted."""
        self._blocks[key].num_users -= 1
        assert self._blocks[key].num_users >= 0, "released more often than taken"

    @property
    def is_idle(self) -> bool:
        """Nothing is in use."""
        return not any(block.num_users for block in self._blocks.values())

    def clear(self) -> None:
        """Forget everything; only while idle."""
        assert self.is_idle, "blocks in use"
        self._blocks.clear()

    def _make_room(self, size: int) -> int | None:
        """Evicts nothing where the size can't fit beside what is in use."""
        used = sorted((block.offset, block.size) for block in self._blocks.values() if block.num_users)
        if _gap(used, size, self.num_words) is None:
            return None
        while True:
            blocks = sorted((block.offset, block.size) for block in self._blocks.values())
            offset = _gap(blocks, size, self.num_words)
            if offset is not None:
                return offset
            del self._blocks[next(key for key, block in self._blocks.items() if not block.num_users)]


def _gap(blocks: list[tuple[int, int]], size: int, num_words: int) -> int | None:
    """The first offset at which the size fits between blocks in order."""
    end = 0
    for offset, length in blocks:
        if offset - end >= size:
            return end
        end = offset + length
    return end if num_words - end >= size else None
