"""The host tier: pages in this machine's memory, in front of the disk tier or without one. Bytes only. Any thread.

For devices that are not the host: there, a page comes back over the bus in a fraction of what the disk takes. What does
not fit any more goes, least recently used first; with a folder below, everything is written through to it, so what goes
here is still there.
"""

import threading
from collections import OrderedDict
from typing import Literal, NamedTuple

from ramet.runtime.kv.page_folder import PageFolder
from ramet.runtime.kv.page_keys import PageKey

Tier = Literal["host", "disk"]


class HostStatistics(NamedTuple):
    """An immutable snapshot."""

    num_pages: int
    num_bytes: int
    limit_bytes: int


class HostPages:
    """See the module."""

    def __init__(self, limit_bytes: int, below: PageFolder | None = None) -> None:
        self.limit_bytes, self._below = limit_bytes, below
        self._lock = threading.Lock()
        self._pages: OrderedDict[PageKey, bytes | memoryview] = OrderedDict()
        self._num_bytes = 0

    def __contains__(self, key: object) -> bool:
        return key in self._pages or (self._below is not None and key in self._below)

    def where(self, key: PageKey) -> Tier | None:
        """In which tier it would be found now."""
        if key in self._pages:
            return "host"
        return self._below.where(key) if self._below is not None else None

    def read(self, key: PageKey) -> memoryview | None:
        """None: a miss. The bytes are not the caller's to change."""
        with self._lock:
            content = self._pages.get(key)
            if content is not None:
                self._pages.move_to_end(key)
                return memoryview(content)
        found = self._below.read(key) if self._below is not None else None
        if found is not None:
            self._keep(key, found)
        return found

    def write(self, key: PageKey, content: bytes | memoryview) -> bool:
        """Keeps `content` itself: it is the caller's no more."""
        is_kept = self._keep(key, content)
        return self._below.write(key, content) or is_kept if self._below is not None else is_kept

    def statistics(self) -> HostStatistics:
        with self._lock:
            return HostStatistics(len(self._pages), self._num_bytes, self.limit_bytes)

    def close(self) -> None:
        self._pages.clear()
        if self._below is not None:
            self._below.close()

    def _keep(self, key: PageKey, content: bytes | memoryview) -> bool:
        with self._lock:
            if key in self._pages or len(content) > self.limit_bytes:
                return key in self._pages
            while self._num_bytes + len(content) > self.limit_bytes:
                _, gone = self._pages.popitem(last=False)
                self._num_bytes -= len(gone)
            self._pages[key] = content
            self._num_bytes += len(content)
            return True
