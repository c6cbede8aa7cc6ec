"""The folder gives back what was written, or nothing: across restarts, cuts, changes and a full disk."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.runtime.errors import BadRequest
from ramet.runtime.kv.page_folder import PageFolder

PAGE = bytes(range(256)) * 4


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


_OPEN: list[PageFolder] = []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[PageFolder]:
    _OPEN.append(PageFolder(tmp_path / "kv", 10_000))
    yield _OPEN[-1]
    while _OPEN:
        _OPEN.pop().close()


def reopened(folder: PageFolder, limit_bytes: int = 10_000) -> PageFolder:
    folder.close()
    _OPEN.append(PageFolder(folder.path, limit_bytes))
    return _OPEN[-1]


def files(folder: PageFolder) -> list[Path]:
    return sorted(folder.path.glob("??/*"))


def test_pages_come_back_after_a_restart_too(folder: PageFolder) -> None:
    assert folder.write(key(1), PAGE) and folder.write(key(1), PAGE) and key(1) in folder
    folder = reopened(folder)
    assert key(1) in folder and bytes(folder.read(key(1)) or b"") == PAGE
    assert key(2) not in folder and folder.read(key(2)) is None


def test_a_torn_changed_or_renamed_page_is_a_miss_and_goes(folder: PageFolder) -> None:
    def spoil(how: str, file: Path) -> None:
        data = file.read_bytes()
        match how:
            case "cut":
                file.write_bytes(data[:-1])
            case "empty":
                file.write_bytes(b"")
            case "changed":
                file.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
            case "gone":
                file.unlink()
            case "another":
                folder.write(key(2), PAGE[::-1])
                file.write_bytes(folder._file(key(2)).read_bytes())

    for how in ("cut", "empty", "changed", "gone", "another"):
        folder.write(key(1), PAGE)
        spoil(how, folder._file(key(1)))
        assert folder.read(key(1)) is None, how
        assert key(1) not in folder and not folder._file(key(1)).exists()
    assert folder.statistics().num_refused == 5


def test_the_least_recently_used_go_and_use_is_remembered_across_a_restart(folder: PageFolder) -> None:
    for number in range(9):
        assert folder.write(key(number), PAGE)
        os.utime(folder._file(key(number)), (number, number))
    folder = reopened(folder)
    assert folder.read(key(0)) is not None
    folder = reopened(folder)
    folder.write(key(9), PAGE)
    assert key(0) in folder and key(1) not in folder and key(9) in folder
    counts = folder.statistics()
    assert counts.num_bytes <= counts.limit_bytes and counts.num_bytes == sum(
        each.stat().st_size for each in files(folder)
    )


def test_a_smaller_limit_takes_effect_at_once(folder: PageFolder) -> None:
    for number in range(9):
        folder.write(key(number), PAGE)
    small = reopened(folder, 2_500)
    assert small.statistics().num_pages == 2 == len(files(small))
    assert not small.write(key(50), PAGE * 10)


def test_one_process_at_a_time(folder: PageFolder) -> None:
    with pytest.raises(BadRequest, match="no other engine uses"):
        PageFolder(folder.path, 1000)
    with pytest.raises(BadRequest, match="can be written"):
        PageFolder(folder.path / "lock" / "below a file", 1000)


def test_leftovers_of_a_cut_write_are_removed_and_strangers_left_alone(folder: PageFolder) -> None:
    folder.write(key(1), PAGE)
    place = folder._file(key(1)).parent
    (place / f".{key(7).hex()}.kvpage.abcd.part").write_bytes(b"half")
    (place / "README").write_bytes(b"mine")
    folder = reopened(folder)
    assert [each.name for each in files(folder)] == [
        f"{key(1).hex()}.kvpage",
        "README",
    ] and folder.statistics().num_pages == 1


def test_a_write_that_fails_says_so_and_leaves_nothing(folder: PageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ramet.runtime.sealed_file.seal", full)
    assert not folder.write(key(1), PAGE)
    assert key(1) not in folder and files(folder) == []
