"""ramet run, chat and complete, on a scripted backend."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet import Engine, Scripted
from ramet.cli import backends, chat, complete, run
from ramet.cli import main as commands
from ramet.runtime.errors import BadRequest, ModelNotFound

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
        monkeypatch.setattr(module, "choose", lambda model, url, **settings: made)
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
    path.write_text(FILE + "\n\ndef main():\n    print(ask.run('why')['a'])\n")
    run.main(path)  # one program and a main of its own, which takes no backend: the default one is the right one
    assert capsys.readouterr().out == "reply 0\n"
    run.main(path, arg=["q=how"])  # arguments are the program's
    assert "how 1 None: reply 1" in capsys.readouterr().out
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


def test_the_end_of_the_input_ends_the_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", ends)
    assert chat.from_terminal() is None and capsys.readouterr().out == "\n"


def test_settings_of_a_model_here_reach_the_engine(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    engine = backends.choose("some.gguf", None, device="cpu", dtype=None, kv_tokens=512, chat_template=template)
    assert isinstance(engine, Engine) and engine.model == "some.gguf"
    settings = {name: value for name, value in engine.settings.items() if name != "progress"}
    assert settings == {"device": "cpu", "kv_tokens": 512, "chat_template": "{{ messages }}"}
    with pytest.raises(ModelNotFound, match=r"readable jinja2 file, got No such file .* `--chat-template`"):
        backends.choose(None, None, chat_template=tmp_path / "none.jinja")


def test_a_server_and_settings_of_a_model_here_do_not_mix() -> None:
    with pytest.raises(BadRequest, match=r"got '--url and --model, --kv-tokens'.*told its own when it was started"):
        backends.choose("some.gguf", "http://127.0.0.1:9", kv_tokens=512)


def test_progress_is_one_line_with_bytes_and_rate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = backends.Progress()
    progress.show(1, 2)
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress._shown = -1.0
    progress.show(50_000_000, 98_000_000)
    progress.show(98_000_000, 98_000_000)
    shown = capsys.readouterr().err
    assert (
        "━" * 15 + "─" * 15 + " 50 of 98 MB" in shown
        and "━" * 30 + " 98" in shown
        and "98 of 98 MB" in shown
        and "MB/s" in shown
        and shown.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["complet"], 2, "expected a command, got 'complet'. Did you mean 'complete'?"),
        (["fly"], 2, "`ramet --help` lists them"),
        (["run", "none.py"], 1, "expected a Python file, got 'none.py' - at `FILE`. It is looked for in "),
        (["complete", "Hi", "--model", "nope"], 1, "'nope' is neither a path nor a model on this machine. Found: "),
        (["complete", "Hi", "--url", "http://127.0.0.1:9"], 1, "nobody answers at http://127.0.0.1:9"),
        (["complete", "Hi", "--max-tokens", "-3", "--url", "http://127.0.0.1:9"], 1, "whole number, 0 or more, got -3"),
        (["serve", "a.gguf", "--model", "b.gguf"], 1, "expected one model, got ['a.gguf', 'b.gguf'] - at `--model`"),
    ],
)
def test_a_wrong_command_line_is_one_line_of_error(
    arguments: list[str], code: int, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ramet", *arguments])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    shown = capsys.readouterr().err
    assert ended.value.code == code and what in shown and "Traceback" not in shown
