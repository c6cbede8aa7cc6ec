"""Memory first, then the folder; what goes from memory is still in the folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.runtime.kv.host_pages import HostPages
from ramet.runtime.kv.page_folder import PageFolder

PAGE = bytes(1000)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def both(tmp_path: Path) -> Iterator[HostPages]:
    pages = HostPages(2500, PageFolder(tmp_path, 100_000))
    yield pages
    pages.close()


def test_without_a_folder_the_least_recently_used_are_gone() -> None:
    pages = HostPages(2500)
    assert pages.write(key(1), PAGE) and pages.write(key(2), PAGE)
    assert pages.read(key(1)) is not None
    assert pages.write(key(3), PAGE)
    assert [pages.where(key(number)) for number in (1, 2, 3)] == ["host", None, "host"]
    assert key(2) not in pages and pages.read(key(2)) is None
    assert pages.statistics() == (2, 2000, 2500)
    assert not pages.write(key(4), bytes(3000)) and pages.statistics().num_pages == 2


def test_over_a_folder_all_is_written_through_and_what_is_read_comes_up(both: HostPages) -> None:
    for number in range(4):
        assert both.write(key(number), bytes([number]) * 1000)
    assert [both.where(key(number)) for number in range(5)] == ["disk", "disk", "host", "host", None]
    assert bytes(both.read(key(0)) or b"") == bytes(1000) and both.where(key(0)) == "host"
    assert both.where(key(2)) == "disk" and key(2) in both


def test_a_page_that_is_too_large_for_memory_is_on_disk(both: HostPages) -> None:
    assert both.write(key(1), bytes(5000)) and both.where(key(1)) == "disk"
    assert len(both.read(key(1)) or b"") == 5000 and both.where(key(1)) == "disk"
