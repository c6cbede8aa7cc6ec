"""Grammars kept on disk: found after a restart, never trusted."""

import hashlib
import logging
import os
import pickle
from pathlib import Path

import pytest

from ramet.constrained import disk_cache
from ramet.constrained.compile import back_end, cache_of, front_end
from ramet.constrained.disk_cache import DiskCache
from ramet.constrained.service import CompileService
from ramet.constrained.spec import JsonSchema, Lark, Literal_, Regex, Sequence, Spec
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import GrammarRefused

SCHEMA = JsonSchema(schema='{"type":"object","properties":{"a":{"type":"string","pattern":"^x"}},"required":["a"]}')
SUM = Lark(grammar='start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/\n')
SPECS: list[tuple[Spec, bytes]] = [
    (SCHEMA, b'{"a": "xy"}'),
    (Regex(pattern="a+b"), b"aab"),
    (SUM, b"1+22"),
    (Sequence(items=(Literal_(text="="), SUM)), b"=1+2"),
]


def vocabulary() -> Vocabulary:
    return Vocabulary([*(bytes([byte]) for byte in range(256)), b"<end>"], special={"<end>": 256}, end_ids=[256])


@pytest.mark.parametrize(("spec", "text"), SPECS, ids=lambda value: str(value)[:20])
def test_comes_back_whole(tmp_path: Path, spec: Spec, text: bytes) -> None:
    DiskCache(tmp_path).put(b"key", front_end(spec))
    found = DiskCache(tmp_path).get(b"key")
    assert found is not None
    made = vocabulary()
    grammar = back_end(found, cache_of(made)._engine)
    assert grammar.initial().advance_bytes(text).accepting
    assert grammar.initial().advance_bytes(b"?").is_dead
    assert DiskCache(tmp_path).get(b"other") is None


def test_a_second_service_needs_no_worker(tmp_path: Path) -> None:
    with CompileService(vocabulary(), disk=DiskCache(tmp_path)) as service:
        service.compile(SCHEMA)
        with pytest.raises(GrammarRefused):
            service.compile(Regex(pattern="["))
    assert len(list(tmp_path.iterdir())) == 1
    with CompileService(vocabulary(), disk=DiskCache(tmp_path)) as service:
        assert service.compile(SCHEMA).initial().advance_bytes(b'{"a": "x"}').accepting
        assert service.worker_pids == ()


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return os.getenv, ("HOME",)


@pytest.mark.parametrize("body", [pickle.dumps(Trap()), pickle.dumps({"a": 1}), b"no pickle"])
def test_foreign_files_are_thrown_away(tmp_path: Path, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(tmp_path)
    cache.put(b"key", front_end(SCHEMA))
    (path,) = tmp_path.iterdir()
    path.write_bytes(hashlib.sha256(body).digest() + body)
    with caplog.at_level(logging.WARNING):
        assert cache.get(b"key") is None
    assert "of no use" in caplog.text
    assert not path.exists()


def test_damaged_files_are_thrown_away(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.put(b"key", front_end(SCHEMA))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert cache.get(b"key") is None
    assert not path.exists()


def test_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache(tmp_path)
    cache.put(b"old", front_end(SCHEMA))
    (path,) = tmp_path.iterdir()
    os.utime(path, (1, 1))
    monkeypatch.setattr(disk_cache, "MAX_BYTES", path.stat().st_size + 10)
    cache.put(b"new", front_end(SCHEMA))
    assert cache.get(b"old") is None
    assert cache.get(b"new") is not None


def test_off_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMET_GRAMMAR_CACHE", raising=False)
    assert DiskCache.from_environment() is None
    monkeypatch.setenv("RAMET_GRAMMAR_CACHE", str(tmp_path / "inner"))
    assert DiskCache.from_environment() is not None
    assert (tmp_path / "inner").stat().st_mode & 0o077 == 0


def test_a_disk_that_takes_nothing_harms_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    cache.put(b"key", front_end(SCHEMA))
    assert "could not be kept" in caplog.text
    assert cache.get(b"key") is None
