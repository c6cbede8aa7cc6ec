"""`ramet top` and `ramet explain` against a served model, over a real socket."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ramet.cli import explain, top
from ramet.cli.main import run

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime" / "serve"))
from scripted import listening


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """A server on a free port; two requests have ended on it."""
    with listening("Hello") as url:
        for place in ("Oslo", "Rome"):
            messages = [{"role": "user", "content": f"What is the weather in {place} today?"}]
            httpx.post(f"{url}/v1/chat/completions", json={"messages": messages}).raise_for_status()
        yield url


def ended(command: str, *arguments: str) -> int | str | None:
    """The status that the command exits with."""
    with pytest.raises(SystemExit) as ending:
        run(command, list(arguments))
    return ending.value.code


def test_top_prints_one_look(base: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert ended("top", "--once", "--base", base) == 0
    shown = capsys.readouterr().out
    assert "running" in shown and "prompt cached" in shown
    assert shown.count("chatcmpl-") == 2 and "python-httpx" in shown


def test_top_tells_rates_between_two_looks(base: str) -> None:
    before = top.look(base, 0)
    now = before._replace(at=before.at + 2, figures={**before.figures, "ramet_generated_tokens_total": 1e4})
    table = top._summary(now, before)
    assert f"{(1e4 - before.figures['ramet_generated_tokens_total']) / 2:,.0f}" in str(list(table.columns[-1].cells))


def test_explain_tells_the_newest_in_words(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("explain", "--base", base) == 0
    shown = capsys.readouterr().out
    assert "diverged at token" in shown
    assert "this request went on 'Rome today" in " ".join(shown.split())
    assert "the cache had 'Oslo today" in " ".join(shown.split())


def test_explain_as_json(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("explain", "--base", base, "--json") == 0
    assert json.loads(capsys.readouterr().out)["cache"]["cause"] == "diverged"


def test_no_server_and_unknown_ids_are_told(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("explain", "nobody", "--base", base) == 1
    assert "answered 404" in capsys.readouterr().err
    assert ended("top", "--once", "--base", "127.0.0.1:9") == 1
    assert "expected a running `ramet serve`" in capsys.readouterr().err


def test_an_account_of_a_whole_hit_is_two_lines_and_a_sentence() -> None:
    found = {"id": "a", "path": "/", "client": "c", "finish": "stop", "prompt_tokens": 5, "cached_tokens": 4}
    text = explain.told({**found, "new_tokens": 1, "cache": {"cause": None, "meaning": "All of it."}})
    assert text.splitlines()[-1] == "All of it."
