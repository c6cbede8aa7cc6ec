"""Pages are handed out once, come back once, and never get lost."""

import random

import pytest

from ramet.runtime.kv.allocator import OutOfPages, PageAllocator


def test_a_fresh_pool_gives_neighbours_and_keeps_page_0() -> None:
    allocator = PageAllocator(8)
    assert allocator.alloc(3) == [1, 2, 3] and allocator.alloc(2) == [4, 5]
    assert allocator.pool_pages == 9 and allocator.statistics() == (8, 3, 5)


def test_too_many_pages_change_nothing() -> None:
    allocator = PageAllocator(4)
    allocator.alloc(2)
    with pytest.raises(OutOfPages, match="expected 3 free pages, have 2"):
        allocator.alloc(3)
    assert allocator.num_free == 2


def test_a_sequence_grows_into_the_page_after_its_last() -> None:
    allocator = PageAllocator(10, num_reserved=0)
    first, other = allocator.alloc(3), allocator.alloc(3)
    allocator.free(other)
    assert allocator.alloc(2, after=first[-1]) == [3, 4]
    assert allocator.alloc(2, after=9) == [5, 6]


@pytest.mark.parametrize("bad", [[1], [0], [99], [-1], [2, 2]])
def test_a_double_or_foreign_free_is_an_error_and_changes_nothing(bad: list[int]) -> None:
    allocator = PageAllocator(4)
    allocator.free(allocator.alloc(4)[:1])
    with pytest.raises(AssertionError):
        allocator.free(bad)
    assert allocator.num_free == 1


def test_random_schedules_lose_no_page() -> None:
    choose = random.Random(0)
    allocator = PageAllocator(64)
    held: list[int] = []
    for _ in range(3000):
        if choose.random() < 0.5:
            wanted = choose.randint(0, allocator.num_free)
            got = allocator.alloc(wanted, after=choose.choice([None, choose.randint(0, 64)]))
            assert len(got) == wanted and not set(got) & set(held)
            held += got
        else:
            choose.shuffle(held)
            given = [held.pop() for _ in range(choose.randint(0, len(held)))]
            allocator.free(given)
        assert allocator.num_free + len(held) == 64
        assert all(not allocator.is_free(page) for page in held)
