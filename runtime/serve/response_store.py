"""Responses kept for `previous_response_id` and GET, per API key, bounded in number and bytes; the oldest go first."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from ramet.runtime.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """An answer, and the conversation that led to it: what a continuation needs."""

    response: dict[str, Any]
    items: list[Any]
    """Input items and output items, in the Responses form."""


class ResponseStore:
    """A bounded memory. A key sees only its own."""

    def __init__(self, *, max_responses: int, max_bytes: int) -> None:
        self._stored: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, key: str, stored: StoredResponse) -> None:
        size = len(msgspec.json.encode((stored.response, stored.items)))
        self._drop((key, stored.response["id"]))
        self._stored[key, stored.response["id"]] = (stored, size)
        self._num_bytes += size
        while self._stored and (len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes):
            self._drop(next(iter(self._stored)))

    def get(self, key: str, response_id: str) -> StoredResponse:
        """NotFound for ids that are unknown, of another key, deleted, or gone to make room."""
        found = self._stored.get((key, response_id))
        if found is None:
            error = NotFound(f"no response {response_id!r} is stored: it was never kept, was deleted, or made room")
            error.at = "$.previous_response_id"
            raise error
        return found[0]

    def delete(self, key: str, response_id: str) -> None:
        self.get(key, response_id)
        self._drop((key, response_id))

    def _drop(self, name: tuple[str, str]) -> None:
        found = self._stored.pop(name, None)
        if found is not None:
            self._num_bytes -= found[1]
