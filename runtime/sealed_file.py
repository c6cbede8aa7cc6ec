"""A file that is whole or refused: what was written, its kind and its version, under one digest. Knows bytes only.

    0   8 bytes   kind, such as b"RAMETCKP"
    8   4 bytes   version, little endian
    12  8 bytes   length of the content
    20  32 bytes  BLAKE2b of the 20 bytes above and the content
    52            content

Writing goes to a neighbour first, reaches the disk, and takes the name in one step: whoever reads under the name finds
the old file, the new one, or none, never half of one.
"""

import hashlib
import os
import secrets
import struct
from pathlib import Path

_HEAD = struct.Struct("<8sIQ")
_DIGEST_BYTES = 32
HEADER_BYTES = _HEAD.size + _DIGEST_BYTES


class Unsealed(Exception):
    """The file is not what was written; the message says in which way."""


def seal(kind: bytes, version: int, content: bytes | memoryview) -> bytes:
    """The header that stands before `content`."""
    head = _HEAD.pack(kind, version, len(content))
    return head + _digest(head, content)


def unseal(kind: bytes, version: int, data: bytes | memoryview) -> memoryview:
    """The content of a sealed file, as a view of `data`. Raises Unsealed."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise Unsealed(f"it ends after {len(view)} bytes, inside its header")
    found_kind, found_version, length = _HEAD.unpack_from(view)
    if found_kind != kind:
        raise Unsealed(f"it begins with {bytes(found_kind)!r} instead of {kind!r}: it is another kind of file")
    if found_version != version:
        raise Unsealed(f"it has version {found_version}; this Ramet reads version {version}")
    content = view[HEADER_BYTES:]
    if len(content) != length:
        raise Unsealed(f"it has {len(content)} bytes of content and its header says {length}: it was cut or joined")
    if _digest(view[: _HEAD.size], content) != view[_HEAD.size : HEADER_BYTES]:
        raise Unsealed("its checksum does not fit its content: some bytes have changed since it was written")
    return content


def write_sealed(path: Path, kind: bytes, version: int, content: bytes | memoryview, *, durable: bool = True) -> None:
    """`durable`: wait until the disk has it; without, a power cut may leave a torn file, which no reader accepts."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            file.write(seal(kind, version, content))
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def read_sealed(path: Path, kind: bytes, version: int) -> memoryview:
    """Raises OSError where it can't be read, Unsealed where it is not whole."""
    return unseal(kind, version, path.read_bytes())


def _digest(head: bytes | memoryview, content: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(head, digest_size=_DIGEST_BYTES)
    digest.update(content)
    return digest.digest()


def _sync_folder(folder: Path) -> None:
    """So that the new name, too, survives a power cut."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
