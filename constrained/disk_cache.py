"""What front ends made of specs, kept on disk over restarts: `RAMET_GRAMMAR_CACHE=DIR`, off by default.

A file is a checksum and a pickle that may name only the classes of a grammar, so a damaged or foreign file is thrown
away and never run. Its name is a digest of the spec, of this package's own source and of the libraries that shape the
result: another version finds nothing. Refusals are not kept. The oldest files go when the folder grows too large.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import logging
import os
import pickle
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from ramet.constrained.compile import FrontEnd
from ramet.constrained.lark import fallback

MAX_BYTES = 256 << 20
_DIGEST = 32
_SUFFIX = ".grammar"
_CLASSES = {
    "ramet.constrained.automaton.ir": None,
    "ramet.constrained.regex.dfa": {"Dfa"},
    "ramet.constrained.lark.load": {"Tables", "Terminal", "Reduce"},
    "ramet.constrained.lark.fallback": {"Elsewhere"},
    "ramet.constrained.parts": {"Parts", "Node", "Step"},
    "ramet.constrained.ledger": {"LedgerEntry"},
    "lark.lexer": {"Token"},
    "msgspec._utils": {"rebuild"},
}
"""Modules and the names that a file may use of them; None: all classes defined there."""
_log = logging.getLogger(__name__)


class DiskCache:
    """One folder. Several processes may share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @classmethod
    def from_environment(cls) -> "DiskCache | None":
        """The folder that RAMET_GRAMMAR_CACHE names; None where it names none."""
        folder = os.environ.get("RAMET_GRAMMAR_CACHE", "")
        return cls(Path(folder).expanduser()) if folder else None

    def get(self, key: bytes) -> FrontEnd | None:
        """What was kept; None where there is nothing, or nothing whole."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = data[_DIGEST:]
        if hashlib.sha256(body).digest() != data[:_DIGEST]:
            return _thrown_away(path, "its checksum does not hold")
        try:
            found = _Unpickler(io.BytesIO(body)).load()
        except Exception as error:  # pickle raises nearly anything
            return _thrown_away(path, str(error))
        if not isinstance(found, FrontEnd):
            return _thrown_away(path, f"it holds a {type(found).__name__}")
        with contextlib.suppress(OSError):
            os.utime(path)
        return found

    def put(self, key: bytes, value: FrontEnd) -> None:
        """Keep it. A full or read-only disk is no error of the request: it is logged."""
        body = pickle.dumps(value)
        try:
            with tempfile.TemporaryDirectory(dir=self.folder) as inner:  # so that no one reads half a file
                written = Path(inner) / "grammar"
                written.write_bytes(hashlib.sha256(body).digest() + body)
                written.replace(self._path(key))
            self._make_room()
        except OSError as error:
            _log.warning("a grammar could not be kept in %s: %s", self.folder, error)

    def _path(self, key: bytes) -> Path:
        return self.folder / (hashlib.sha256(_version() + key).hexdigest() + _SUFFIX)

    def _make_room(self) -> None:
        known = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self.folder.glob(f"*{_SUFFIX}"))
        total = sum(size for _, size, _ in known)
        for _, size, path in known:
            if total <= MAX_BYTES:
                return
            path.unlink(missing_ok=True)
            total -= size


def _thrown_away(path: Path, reason: str) -> FrontEnd | None:
    _log.warning("a grammar kept in %s is of no use and compiled again: %s", path, reason)
    path.unlink(missing_ok=True)
    return None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        names = _CLASSES.get(module, set())
        found = super().find_class(module, name) if names is None or name in names else None
        if found is None or (names is None and not (isinstance(found, type) and found.__module__ == module)):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a grammar")
        return found


@cache
def _version() -> bytes:
    """A digest of the package that makes grammars, and of what it makes them with."""
    digest = hashlib.sha256(repr((importlib.metadata.version("lark"), fallback.is_installed())).encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
