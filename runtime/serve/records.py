"""The last requests, as figures and token ids: what `/v1/requests`, `ramet top` and `ramet explain` read. Bounded."""

import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ramet.runtime.serve.usage import total
from ramet.runtime.types import Finished


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request that has ended."""

    id: str
    """The answer's id."""
    ended: float
    """Unix seconds."""
    path: str
    client: str
    """First word of the user agent."""
    program: str | None
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    total_ms: float
    finish: str
    """A finish reason, `aborted`, or `error CODE`."""
    miss: Mapping[str, Any] | None
    """Where the cache's knowledge of the prompt ended, and why; None: it had all of it, or nothing was computed."""


class Records:
    """Records with their prompts, newest last; the oldest go first. Asked with a key, it knows that key's alone."""

    def __init__(self, *, max_records: int = 512, max_tokens: int = 4_000_000) -> None:
        """max_tokens  of all prompts together, 4 bytes each; older prompts go, their figures stay"""
        self._max_records, self._max_tokens = max_records, max_tokens
        self._records: OrderedDict[str, tuple[str, Record]] = OrderedDict()
        self._prompts: OrderedDict[str, array.array[int]] = OrderedDict()
        self._num_tokens = 0

    def add(self, key: str, record: Record, prompt: Sequence[int]) -> None:
        self._drop_prompt(record.id)
        self._records.pop(record.id, None)
        self._records[record.id] = (key, record)
        self._prompts[record.id] = array.array("i", prompt)
        self._num_tokens += len(prompt)
        while len(self._records) > self._max_records:
            self._drop_prompt(self._records.popitem(last=False)[0])
        while self._num_tokens > self._max_tokens and len(self._prompts) > 1:
            self._drop_prompt(next(iter(self._prompts)))

    def newest(self, key: str, limit: int) -> list[Record]:
        """Newest first."""
        return [record for record, _ in zip(self._of(key), range(limit), strict=False)]

    def find(self, key: str, request_id: str) -> Record | None:
        owner, record = self._records.get(request_id, (None, None))
        return record if owner == key else None

    def prompt(self, request_id: str) -> Sequence[int] | None:
        """Its ids; None: too many came since, or the engine alone had them."""
        return self._prompts.get(request_id) or None

    def _of(self, key: str) -> Iterator[Record]:
        return (record for owner, record in reversed(self._records.values()) if owner == key)

    def _drop_prompt(self, request_id: str) -> None:
        self._num_tokens -= len(self._prompts.pop(request_id, ()))


def record_of(
    request_id: str,
    *,
    ended: float,
    path: str,
    client: str,
    program: str | None,
    num_prompt: int,
    finished: Sequence[Finished],
    outcome: str,
    took_s: float,
    miss: Mapping[str, Any] | None,
) -> Record:
    """The figures of a request that ended with these events, one per choice."""
    usage = total(finished)
    times = finished[0].timings if finished else None
    return Record(
        id=request_id,
        ended=ended,
        path=path,
        client=client,
        program=program,
        prompt_tokens=num_prompt,
        cached_tokens=usage.cached_tokens,
        new_tokens=usage.completion_tokens,
        queue_ms=times.queue_s * 1e3 if times else 0.0,
        prefill_ms=times.prefill_s * 1e3 if times else 0.0,
        decode_ms=times.decode_s * 1e3 if times else 0.0,
        total_ms=took_s * 1e3,
        finish=outcome,
        miss=miss,
    )
