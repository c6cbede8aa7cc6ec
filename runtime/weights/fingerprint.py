"""A model's fingerprint: which weights made these tokens, or this KV. Reads files' sizes and samples of their bytes.

A sample, because a large model would take minutes to hash: the head and the tail of each file (headers, vocabulary,
last tensors) and 64 places between, of 64 KiB each. Weights that were trained further differ everywhere, so they differ
there. Files edited by hand in a few bytes may pass for each other: a disk tier of such a model is to be deleted.
"""

import hashlib
import os
from pathlib import Path

_ENDS, _PIECE, _NUM_PIECES = 2**20, 2**16, 64
_SUFFIXES = (".safetensors", ".gguf", ".json", ".jinja")


def fingerprint(path: Path) -> str:
    """Of a model's file or folder: 32 hex digits, the same wherever it lies and whenever it was copied."""
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES)
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        name = file.suffix if path.is_file() else file.name
        digest.update(f"{name} {file.stat().st_size}\n".encode())
        _sample(file, digest)
    return digest.hexdigest()


def _sample(file: Path, digest: "hashlib.blake2b") -> None:
    size = file.stat().st_size
    with file.open("rb") as opened:
        if size <= 2 * _ENDS + _NUM_PIECES * _PIECE:
            digest.update(opened.read())
            return
        step = (size - 2 * _ENDS) // _NUM_PIECES
        digest.update(opened.read(_ENDS))
        for index in range(_NUM_PIECES):
            opened.seek(_ENDS + index * step)
            digest.update(opened.read(_PIECE))
        opened.seek(-_ENDS, os.SEEK_END)
        digest.update(opened.read(_ENDS))
