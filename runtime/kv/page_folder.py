"""The disk tier's folder: a sealed file a page, up to so many bytes in all, the least recently used gone first.

Knows bytes and keys, no model and no tensor. Any thread. What is torn, changed, renamed or gone is a miss, and removed;
a full disk or a lost folder makes writes fail, never reads lie. One process at a time: the folder is locked.
"""

import contextlib
import logging
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from ramet.runtime.errors import BadRequest
from ramet.runtime.kv.page_keys import KEY_BYTES, PageKey
from ramet.runtime.sealed_file import HEADER_BYTES, Unsealed, unseal, write_sealed

log = logging.getLogger("ramet.kv")
_KIND, _VERSION = b"RAMETKVP", 1
_SUFFIX = ".kvpage"


class FolderStatistics(NamedTuple):
    """An immutable snapshot."""

    num_pages: int
    num_bytes: int
    limit_bytes: int
    num_written: int
    num_removed: int
    """To keep within the limit."""
    num_refused: int
    """Found torn, changed or gone when they were read."""


class PageFolder:
    """See the module."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """Takes the folder, with what an earlier process left in it. Raises BadRequest where it can't be used."""
        self.path, self.limit_bytes = path, limit_bytes
        self._lock = threading.Lock()
        self._num_written = self._num_removed = self._num_refused = 0
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # KV tells what was said: for its owner alone
            self._owner = _take(path)
            self._sizes = _scan(path)
        except OSError as error:
            raise BadRequest(
                expected="a folder that can be written", got=error.strerror, at=f"kv_disk={path}"
            ) from None
        self._num_bytes = sum(self._sizes.values())
        self._shrink()

    def __contains__(self, key: object) -> bool:
        return key in self._sizes

    def where(self, key: PageKey) -> Literal["disk"] | None:
        """In which tier it would be found now."""
        return "disk" if key in self else None

    def read(self, key: PageKey) -> memoryview | None:
        """The page's bytes, in memory of the caller's own; None: a miss."""
        file = self._file(key)
        try:
            data = bytearray(file.stat().st_size)
            with file.open("rb", buffering=0) as opened:
                _fill(opened, data)
            content = unseal(_KIND, _VERSION, memoryview(data))
            if content[:KEY_BYTES] != key:
                raise Unsealed("it holds another page than its name says")
        except (OSError, Unsealed) as error:
            log.warning("a page of the disk tier is unusable and will be computed again: %s (%s)", file.name, error)
            self._drop(key, file)
            return None
        with self._lock:
            if key in self._sizes:
                self._sizes.move_to_end(key)
        with contextlib.suppress(OSError):
            os.utime(file)  # so that the order of use survives a restart
        return content[KEY_BYTES:]

    def write(self, key: PageKey, content: bytes | memoryview) -> bool:
        """False: it could not be, and the log says why."""
        num_bytes = HEADER_BYTES + KEY_BYTES + len(content)
        if key in self._sizes or num_bytes > self.limit_bytes:
            return key in self._sizes
        file = self._file(key)
        self._shrink(num_bytes)
        try:
            file.parent.mkdir(exist_ok=True)
            write_sealed(file, _KIND, _VERSION, b"".join((key, content)), durable=False)
        except OSError as error:
            log.warning("a page could not be written to the disk tier: %s", error)
            return False
        with self._lock:
            self._sizes[key] = num_bytes
            self._num_bytes += num_bytes
            self._num_written += 1
        return True

    def statistics(self) -> FolderStatistics:
        with self._lock:
            counts = self._num_written, self._num_removed, self._num_refused
            return FolderStatistics(len(self._sizes), self._num_bytes, self.limit_bytes, *counts)

    def close(self) -> None:
        """Let another process have it."""
        self._owner.close()

    def _file(self, key: PageKey) -> Path:
        name = key.hex()
        return self.path / name[:2] / (name + _SUFFIX)

    def _shrink(self, room: int = 0) -> None:
        """Make place for `room` more bytes."""
        while True:
            with self._lock:
                if self._num_bytes + room <= self.limit_bytes or not self._sizes:
                    return
                key, num_bytes = self._sizes.popitem(last=False)
                self._num_bytes -= num_bytes
                self._num_removed += 1
            with contextlib.suppress(OSError):
                self._file(key).unlink()

    def _drop(self, key: PageKey, file: Path) -> None:
        with self._lock:
            self._num_bytes -= self._sizes.pop(key, 0)
            self._num_refused += 1
        with contextlib.suppress(OSError):
            file.unlink()


def _fill(opened: BinaryIO, data: bytearray) -> None:
    """Up to what is there: a file that grew shorter meanwhile is found out by its seal."""
    view, done = memoryview(data), 0
    while done < len(data):
        count = opened.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            return
        done += count


def _take(path: Path) -> BinaryIO:
    owner = (path / "lock").open("ab")
    try:
        import fcntl

        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # no such locks on this system: two processes would only miss each other's pages
        return owner
    except OSError:
        owner.close()
        hint = "Give each server a folder of its own."
        raise BadRequest(
            expected="a folder that no other engine uses", got=str(path), at="kv_disk", hint=hint
        ) from None
    return owner


def _scan(path: Path) -> "OrderedDict[PageKey, int]":
    """What is there, least recently used first. Names only: a page is checked when it is read."""
    found: list[tuple[float, PageKey, int]] = []
    for file in path.glob("??/*"):
        stat = file.stat()
        try:
            found.append((stat.st_mtime, bytes.fromhex(file.name.removesuffix(_SUFFIX)), stat.st_size))
        except ValueError:
            if file.name.endswith(".part"):
                file.unlink(missing_ok=True)  # of a write that was cut
    return OrderedDict((key, size) for _, key, size in sorted(found) if len(key) == KEY_BYTES)
