"""Choices of blocks: measured only when asked, kept on disk, and no worse for a file that is broken."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ramet.kernels import moe, quantized_linear, tuning

CPU = torch.device("cpu")
CANDIDATES = ((16, 64), (32, 64), (64, 32))


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning._book.cache_clear()
    yield tmp_path
    tuning._book.cache_clear()


def ask(size: tuple[int, ...] = (5, 7), run: Callable[[tuple[int, ...]], object] = lambda blocks: None) -> object:
    return tuning.chosen("an_op", size, CANDIDATES, run, CPU)


def stopwatch(seconds: dict[tuple[int, ...], float]) -> tuning.Timer:
    """Takes a run for as long as `seconds` says of its blocks."""

    def time(run: Callable[[], object]) -> float:
        run()
        return seconds[run.args[0]]  # type: ignore[attr-defined]

    return time


def test_nothing_is_timed_unasked(empty_cache: Path) -> None:
    assert ask() == CANDIDATES[0]
    assert list(empty_cache.rglob("*.json")) == []


def test_the_fastest_is_kept_for_the_next_process() -> None:
    with tuning.measure_blocks(stopwatch({(16, 64): 3.0, (32, 64): 1.0, (64, 32): 2.0})):
        assert ask() == (32, 64)
        assert ask((5, 8)) == (32, 64)
    tuning._book.cache_clear()  # another process
    assert ask() == (32, 64)
    assert ask((9, 9)) == CANDIDATES[0]


def test_what_does_not_compile_is_no_choice() -> None:
    def run(blocks: tuple[int, ...]) -> None:
        if blocks != (64, 32):
            raise RuntimeError("out of shared memory")

    with tuning.measure_blocks(stopwatch(dict.fromkeys(CANDIDATES, 1.0))):
        assert ask(run=run) == (64, 32)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"an_op 5x7": "no"}', '{"an_op 5x7": [1, 2]}', '{"an_op 5x7": [32, "64"]}']
)
def test_a_broken_or_foreign_file_is_as_good_as_none(text: str) -> None:
    book = tuning._book("cpu")
    book.path.parent.mkdir(parents=True)
    book.path.write_text(text)
    tuning._book.cache_clear()
    assert ask() == CANDIDATES[0]
    with tuning.measure_blocks(stopwatch({(16, 64): 3.0, (32, 64): 1.0, (64, 32): 2.0})):
        assert ask() == (32, 64)


def test_writers_keep_what_others_wrote(empty_cache: Path) -> None:
    one, other = (tuning.Book(empty_cache / "book.json") for _ in range(2))
    one.keep("a 1", (16,))
    other.keep("b 2", (32,))
    assert tuning.Book(empty_cache / "book.json").blocks == {"a 1": (16,), "b 2": (32,)}


def test_a_folder_that_cannot_be_written_costs_a_warning(empty_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    (empty_cache / "file").write_text("")
    book = tuning.Book(empty_cache / "file" / "book.json")
    book.keep("a 1", (16,))
    assert book.blocks == {"a 1": (16,)} and "not kept" in caplog.text


@pytest.mark.parametrize("blocks", quantized_linear.BLOCKS)
def test_every_choice_of_the_quantized_product_is_right(blocks: tuple[int, int, int], device: str) -> None:
    inputs = quantized_linear.make_inputs(17, 70, 96, 4, 32, torch.float32, device, pad=5)
    expected = quantized_linear.quantized_linear.on("reference")(**inputs)
    torch.testing.assert_close(
        quantized_linear.quantized_linear_triton(**inputs, blocks=blocks), expected, atol=1e-3, rtol=1e-4
    )


@pytest.mark.parametrize("blocks", moe.BLOCKS)
def test_every_choice_of_the_grouped_product_is_right(blocks: tuple[int, int, int], device: str) -> None:
    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(9, 33, generator=g).to(device), torch.randn(5, 70, 33, generator=g).to(device)
    experts = torch.stack([torch.randperm(5, generator=g)[:2] for _ in range(9)]).int().to(device)
    expected = moe.grouped_linear.on("reference")(x, w, experts)
    torch.testing.assert_close(moe.grouped_linear_triton(x, w, experts, blocks=blocks), expected, atol=1e-4, rtol=1e-4)
