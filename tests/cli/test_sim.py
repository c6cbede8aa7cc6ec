"""`ramet sim`: the commands of docs/scheduling.md run, and what can't be done is refused before anything runs."""

import json
import shlex
from pathlib import Path

import pytest

from ramet.cli.main import run

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "data" / "traces"
SLOW = ("ramet sim bars --", "ramet sim fidelity", "ramet bench")
"""Minutes each; their parts have tests of their own."""


def documented() -> list[str]:
    """Command lines of the page's shell blocks."""
    blocks = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8").split("```sh\n")[1:]
    lines = [line for block in blocks for line in block.partition("```")[0].splitlines()]
    return [line for line in lines if line.startswith("ramet ") and not line.startswith(SLOW)]


def sim(command: str) -> int:
    """Its exit code."""
    with pytest.raises(SystemExit) as done:
        raise SystemExit(run("sim", shlex.split(command)))
    return int(done.value.code or 0)


@pytest.mark.slow
@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the repository")
@pytest.mark.parametrize("command", documented())
def test_a_command_of_the_page_runs(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert sim(command.removeprefix("ramet sim ")) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    if "--json" in command:
        assert json.loads(last)
    else:
        assert last.startswith("wall_s")


def test_the_page_has_commands() -> None:
    assert len(documented()) >= 4


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "expected `bars`, `fidelity` or --trace FILE."),
        ("bar", "got 'bar'"),
        ("bars S99", "S99"),
        ("bars S3 --plot curve.png", "S6"),
        ("--trace nowhere.csv", "nowhere.csv"),
        ("--trace nowhere.csv --without hope", "retention"),
        ("--trace nowhere.csv --plot runs.gif", ".png or .svg"),
    ],
)
def test_what_can_not_be_done_is_said(command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "--plot curve.png" in command:
        pytest.importorskip("matplotlib")
    assert sim(command) != 0
    assert message in capsys.readouterr().err
