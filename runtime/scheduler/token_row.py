"""The token ids of a branch: appended to every step, forked without a copy. Knows what an id is and nothing more.

A fork shares the ids until one side writes; the writer then copies them, at four bytes a token and the speed of memcpy.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

ID_TYPE = "i"
"""int32, as the radix tree keeps them."""


class TokenRow(Sequence[int]):
    """A growing row of token ids. One writer at a time; forks may have different writers."""

    __slots__ = ("_ids", "_is_shared", "_length", "_names", "_tokens_per_name")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._ids = array(ID_TYPE)
        self._ids.extend(tokens)
        self._length = len(self._ids)
        self._is_shared = False
        self._names: list[bytes] = []
        self._tokens_per_name = 1

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "array[int]": ...
    def __getitem__(self, index: int | slice) -> "int | array[int]":
        """An id, or a copy of a run of ids as int32."""
        if self._is_shared and self._length < len(self._ids):
            if isinstance(index, slice):
                return self._ids[slice(*index.indices(self._length))]
            return self._ids[range(self._length)[index]]
        return self._ids[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    def __repr__(self) -> str:
        return f"TokenRow({self[:].tolist()})"

    def append(self, token: int) -> None:
        if self._is_shared:
            self._own()
        self._ids.append(token)
        self._length += 1

    def extend(self, tokens: Iterable[int]) -> None:
        if self._is_shared:
            self._own()
        self._ids.extend(tokens)
        self._length = len(self._ids)

    def truncate(self, length: int) -> None:
        """Forget the ids from `length` on."""
        assert length <= self._length
        self._length = length
        del self._names[length // self._tokens_per_name :]
        if not self._is_shared:
            del self._ids[length:]

    def fork(self) -> "TokenRow":
        """The same ids, apart from here on. O(1)."""
        child = TokenRow.__new__(TokenRow)
        child._ids, child._length, child._is_shared = self._ids, self._length, True
        child._names, child._tokens_per_name = self._names.copy(), self._tokens_per_name
        self._is_shared = True
        return child

    def names(self, tokens_per_name: int) -> list[bytes]:
        """What its leading runs of so many ids are called, as far as somebody gave them names. The list is for its
        giver to extend; names stay with their ids, through forks, and go with them."""
        if tokens_per_name != self._tokens_per_name:
            self._names, self._tokens_per_name = [], tokens_per_name
        return self._names

    def _own(self) -> None:
        self._ids = self._ids[: self._length]
        self._is_shared = False
