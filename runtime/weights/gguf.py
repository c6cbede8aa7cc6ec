"""A GGUF file's header: its metadata and where each tensor lies. Reads no tensor data and knows no model.

The layout (GGUF specification, versions 2 and 3, little-endian): magic, version, counts, then typed key/value pairs,
then tensor records (name, dimensions fastest first, type, offset), then the data, aligned. The file is mapped; each
number read from it is checked against the end of the file first, so a torn file ends in `WeightsCorrupt`.
"""

import mmap
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ramet.runtime.errors import UnsupportedModel, WeightsCorrupt
from ramet.runtime.weights.ggml import GGML_TYPES, GgmlType

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MOST_DIMENSIONS = 4


class TensorRecord(NamedTuple):
    """One tensor of the file."""

    name: str
    shape: tuple[int, ...]
    """Slowest axis first, as torch has it (the file stores it the other way round)."""
    type: GgmlType
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


class GgufFile(NamedTuple):
    """A parsed header over the mapped file."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorRecord]
    data: mmap.mmap


def open_gguf(path: Path) -> GgufFile:
    """Parse the header of a GGUF file. Raises WeightsCorrupt (torn, not GGUF) or UnsupportedModel (version, types)."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(
                file.fileno(), 0, access=mmap.ACCESS_COPY
            )  # writable pages that are never written: torch asks for them
        except ValueError as error:  # an empty file can't be mapped
            raise WeightsCorrupt(f"{path} is empty; download it again.") from error
    cursor = _Cursor(path, data)
    cursor.check_magic_and_version()
    num_tensors, num_pairs = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = dict(cursor.pair() for _ in range(cursor.plausible(num_pairs, least_bytes=13)))
    records = [cursor.record() for _ in range(cursor.plausible(num_tensors, least_bytes=24))]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise WeightsCorrupt(f"{path}: general.alignment is {alignment!r}, expected a multiple of 8.")
    start = -(-cursor.position // alignment) * alignment
    tensors = {record.name: record._replace(offset=start + record.offset) for record in records}
    for record in tensors.values():
        _check_place(path, record, len(data), alignment)
    return GgufFile(path, metadata, tensors, data)


def _check_place(path: Path, record: TensorRecord, size: int, alignment: int) -> None:
    if record.offset % alignment:
        raise WeightsCorrupt(f"{path} is damaged: tensor {record.name!r} lies at {record.offset}, not aligned.")
    if record.offset + record.num_bytes > size:
        raise WeightsCorrupt(
            f"{path} is cut short: tensor {record.name!r} ends at byte {record.offset + record.num_bytes}, "
            f"the file at {size}. Download it again."
        )


class _Cursor:
    """Reads forward through the mapped header; every read is checked against the file's end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.position, self.size = path, data, 0, len(data)

    def check_magic_and_version(self) -> None:
        magic = self.take(4)
        if magic != _MAGIC:
            raise WeightsCorrupt(f"{self.path} is not a GGUF file: it starts with {magic!r}, expected {_MAGIC!r}.")
        version = self.scalar("I")
        if version not in (2, 3):
            raise UnsupportedModel(f"{self.path} is GGUF version {version}; versions 2 and 3, little-endian, are read.")

    def take(self, num_bytes: int) -> bytes:
        end = self.position + num_bytes
        if end > self.size:
            raise WeightsCorrupt(
                f"{self.path} is cut short: its header asks for byte {end}, the file ends at {self.size}. "
                "Download it again."
            )
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def plausible(self, count: int, *, least_bytes: int) -> int:
        """`count` items of at least `least_bytes` must fit in what is left, or the count itself is damaged."""
        if count * least_bytes > self.size - self.position:
            raise WeightsCorrupt(
                f"{self.path} claims {count} entries at byte {self.position}, more than it has room for."
            )
        return count

    def scalar(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        return int(value)

    def string(self) -> str:
        raw = self.take(self.scalar("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise WeightsCorrupt(f"{self.path}: the string before byte {self.position} is not UTF-8.") from error

    def pair(self) -> tuple[str, Value]:
        key = self.string()
        kind = self.scalar("I")
        return key, self.array(key) if kind == _ARRAY else self.reader(key, kind)(1)[0]

    def array(self, key: str) -> list[Scalar]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _ARRAY:
            raise UnsupportedModel(f"{self.path}: metadata {key!r} is an array of arrays, which Ramet does not read.")
        return self.reader(key, kind)(count)

    def reader(self, key: str, kind: int) -> Callable[[int], list[Scalar]]:
        if kind == _STRING:
            return self.strings
        if kind not in _SCALARS:
            raise WeightsCorrupt(f"{self.path}: metadata {key!r} has unknown value type {kind}.")
        return lambda count: self.scalars(_SCALARS[kind], count)

    def scalars(self, code: str, count: int) -> list[Scalar]:
        self.plausible(count, least_bytes=struct.calcsize("<" + code))
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize("<" + code))))

    def strings(self, count: int) -> list[Scalar]:
        """Vocabularies have 100,000s of strings: one tight loop, checked once per string."""
        self.plausible(count, least_bytes=8)
        data, position, size, length_of = self.data, self.position, self.size, struct.Struct("<Q").unpack_from
        found: list[Scalar] = []
        try:
            for _ in range(count):
                (length,) = length_of(data, position)
                start, position = position + 8, position + 8 + length
                if position > size:
                    raise struct.error
                found.append(data[start:position].decode("utf-8"))
        except (struct.error, UnicodeDecodeError) as error:
            raise WeightsCorrupt(
                f"{self.path} is damaged: string {len(found)} of {count} is not whole UTF-8."
            ) from error
        self.position = position
        return found

    def record(self) -> TensorRecord:
        name, num_dimensions = self.string(), self.scalar("I")
        if num_dimensions > _MOST_DIMENSIONS:
            raise WeightsCorrupt(
                f"{self.path}: tensor {name!r} claims {num_dimensions} dimensions, at most 4 are known."
            )
        shape = tuple(self.scalar("Q") for _ in range(num_dimensions))[::-1]
        code, offset = self.scalar("I"), self.scalar("Q")
        if code not in GGML_TYPES:
            known = ", ".join(kind.name for kind in GGML_TYPES.values())
            raise UnsupportedModel(f"{self.path}: tensor {name!r} has ggml type {code}. Known: {known}.")
        kind = GGML_TYPES[code]
        return TensorRecord(name, shape, kind, offset, kind.num_bytes(self._check_row(name, shape, kind)))

    def _check_row(self, name: str, shape: tuple[int, ...], kind: GgmlType) -> tuple[int, ...]:
        if not shape or 0 in shape or shape[-1] % kind.block_size:
            raise WeightsCorrupt(
                f"{self.path}: tensor {name!r} of shape {shape} is not whole {kind.name} blocks of {kind.block_size}."
            )
        return shape
