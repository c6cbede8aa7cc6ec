"""Compiles `descend.cpp` once into the user's cache. None where there is no compiler: numpy does the same, slower."""

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("descend.cpp")
_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared")
_log = logging.getLogger(__name__)


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """The library, built if need be; None where it can't be. RAMET_GRAMMAR_NATIVE=0 does without it."""
    if os.environ.get("RAMET_GRAMMAR_NATIVE") == "0":
        return None
    try:
        return ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("grammar masks are computed by numpy: %s", error)
        return None


def _built() -> Path:
    compiler = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    if compiler is None:
        raise OSError("there is no C++ compiler")
    digest = hashlib.sha256(SOURCE.read_bytes() + "\0".join((compiler, *_FLAGS)).encode()).hexdigest()[:16]
    target = _cache_folder() / digest / "ramet_descend.so"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            fresh = Path(folder) / target.name
            subprocess.run([compiler, *_FLAGS, str(SOURCE), "-o", str(fresh)], check=True, capture_output=True)
            os.replace(fresh, target)  # atomic: a reader sees a whole file or none
    return target


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "ramet"
