"""A sealed file is whole or refused, wherever it was cut or changed."""

from pathlib import Path

import pytest

from ramet.runtime.sealed_file import HEADER_BYTES, Unsealed, read_sealed, write_sealed

KIND, OTHER = b"RAMETTST", b"RAMETXXX"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a file"
    write_sealed(path, KIND, 1, b"what was written")
    return path


def test_what_was_written_is_read(file: Path) -> None:
    assert bytes(read_sealed(file, KIND, 1)) == b"what was written"
    assert [each.name for each in file.parent.iterdir()] == ["a file"]


def test_any_cut_and_any_changed_byte_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(Unsealed):
            read_sealed(file, KIND, 1)
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Unsealed):
            read_sealed(file, KIND, 1)
    file.write_bytes(whole + b"x")
    with pytest.raises(Unsealed, match="cut or joined"):
        read_sealed(file, KIND, 1)


def test_kind_and_version_are_told(file: Path) -> None:
    with pytest.raises(Unsealed, match="another kind of file"):
        read_sealed(file, OTHER, 1)
    with pytest.raises(Unsealed, match="version 1; this Ramet reads version 2"):
        read_sealed(file, KIND, 2)


def test_a_new_file_takes_the_name_whole(file: Path) -> None:
    write_sealed(file, KIND, 1, b"", durable=False)
    assert bytes(read_sealed(file, KIND, 1)) == b"" and file.stat().st_size == HEADER_BYTES
