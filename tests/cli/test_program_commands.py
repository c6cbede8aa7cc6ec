"""ramet run, chat and complete, on a scripted backend."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet import Scripted
from ramet.cli import chat, complete, run
from ramet.runtime.errors import BadRequest

FILE = """
from dataclasses import dataclass
from ramet import State, function, gen

@dataclass
class Place:
    city: str

@function
def ask(s: State, q: str, n: int = 1, place: Place | None = None) -> int:
    s += f"{q} {n} {place}: " + gen("a")
    return n
"""


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    made = Scripted(lambda prompt: f"reply {prompt.number}")
    for module in (run, chat, complete):
        monkeypatch.setattr(module, "choose", lambda model, url: made)
    yield made
    assert made.client.branches == {}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "programs.py"
    path.write_text(FILE)
    return path


def test_run_prints_the_text_and_what_came_back(
    backend: Scripted, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.main(file, arg=["q=why", "n=2", 'place={"city": "Rome"}'], tree=True)
    shown = capsys.readouterr().out
    assert "why 2 Place(city='Rome'): reply 0" in shown and "returned: 2" in shown and "● a" in shown


def test_run_as_json(backend: Scripted, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.main(file, fn="ask", arg=["q=12"], as_json=True, max_tokens=5)
    assert json.loads(capsys.readouterr().out) == {"variables": {"a": "reply"}, "returned": 1}


@pytest.mark.parametrize(
    ("fn", "arguments", "what"),
    [
        ("other", [], "ask"),
        ("ask", ["q"], "name=value"),
        ("ask", ["q=1", "n=many"], "n as"),
        ("ask", ["x=1"], "an argument of ask"),
    ],
)
def test_run_says_what_is_wrong(backend: Scripted, file: Path, fn: str, arguments: list[str], what: str) -> None:
    with pytest.raises(BadRequest, match=what):
        run.main(file, fn=fn, arg=arguments)


def test_run_a_file_with_a_main(backend: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        FILE + "\n\n@function\ndef other(s: State) -> None: ...\n\n\ndef main(backend):\n    print(backend)\n"
    )
    run.main(path)
    assert "Scripted" in capsys.readouterr().out
    with pytest.raises(BadRequest, match="Python file"):
        run.main(tmp_path / "none.py")


def test_chat_with_undo(backend: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["/undo", "hello", "oops", "/undo", "/help", "/tree", "again", "/exit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    chat.main(instruction="Be kind.")
    shown = capsys.readouterr().out
    assert "nothing to take back" in shown and "the last turn is gone" in shown and "reply 2" in shown
    assert "/exit ends" in shown and "● answer" in shown


def test_complete(backend: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    complete.main("Once upon", stop=["y"])
    assert capsys.readouterr().out == "repl\n"
