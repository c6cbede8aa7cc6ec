"""Why a match ended where it did: never seen, diverged from a sibling, or evicted, by whom and when.

The tree remembers a bounded number of evictions, each under the hash of the path down to the end of its first lost
page. A key that misses there asks for the same hash. Diagnosis only: a lost record gives a less precise answer, never
wrong KV.
"""

from collections import OrderedDict
from typing import Literal, NamedTuple

from ramet.radix.key import Tokens

MissCause = Literal["whole", "never_seen", "diverged", "evicted"]


class EvictionRecord(NamedTuple):
    """One eviction, as a later miss will be told of it."""

    owner: str
    """The program whose pages went."""
    on_behalf_of: str
    """The program that needed room."""
    time: float
    policy: str
    """Name of the eviction order."""
    rank: float
    """What the order thought it worth."""
    num_pages: int
    was_superseded: bool
    """Newer state had taken its place."""


class Miss(NamedTuple):
    """The first token that the tree could not give, and the one reason for it."""

    cause: MissCause
    at_token: int
    """Index in the key of the first token without cached KV."""
    expected: Tokens
    """int32 [<= 16]  `diverged`: what the nearest cached path has from `at_token` on; else empty"""
    record: EvictionRecord | None = None
    """`evicted`: who, when, why."""


class EvictionMemory:
    """The last `capacity` evictions by prefix hash; the oldest is forgotten first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._records: OrderedDict[tuple[str, int], EvictionRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def remember(self, namespace: str, prefix: int, record: EvictionRecord) -> None:
        key = (namespace, prefix)
        self._records[key] = record
        self._records.move_to_end(key)
        while len(self._records) > self._capacity:
            self._records.popitem(last=False)

    def find(self, namespace: str, prefix: int) -> EvictionRecord | None:
        return self._records.get((namespace, prefix))
