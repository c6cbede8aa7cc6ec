"""Codex and opencode: each reads a file with its shell tool, told to by a scripted model, and repeats what it says.

Their settings are what `ramet launch` prints. Run by scripts/test-terminal-agents, which installs them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.cli.launch import main as launch

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime" / "serve"))
from scripted import HERMES, listening

pytestmark = pytest.mark.clients
BINARIES = Path(os.environ.get("RAMET_NPM", "/nowhere"))
TOOLS = {"exec_command": {"cmd": "cat note.txt"}, "bash": {"command": "cat note.txt"}}
"""Codex's tool and opencode's, with arguments that read the note."""


def reply(prompt: str) -> str:
    """A call of the shell tool; once there is a result, the answer. Without tools (a title is wanted), a word."""
    if "<|im_start|>tool" in prompt:
        return "The file says ramet-was-here."
    for name, arguments in TOOLS.items():
        if f'"{name}"' in prompt:
            return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    return "Note"


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """Large enough for their long instructions: a token is a byte here."""
    size = {"num_pages": 40_000, "context_length": 300_000, "max_step_tokens": 100_000}
    with listening(reply, template=HERMES, **size) as url:
        yield url


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "note.txt").write_text("ramet-was-here\n")
    return tmp_path


def settings(agent: str, base: str, capsys: pytest.CaptureFixture[str]) -> str:
    launch(agent, base=base)
    return capsys.readouterr().out


def run(home: Path, *command: str) -> str:
    """What the agent printed; everything that it keeps lies in `home`."""
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "CACHE", "STATE")}
    environment = {**os.environ, **folders, "HOME": str(home), "PWD": str(home), "CODEX_HOME": str(home / "codex")}
    done = subprocess.run(
        [str(BINARIES / command[0]), *command[1:]],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_codex_runs_a_command_and_repeats_what_it_read(
    base: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "codex").mkdir()
    (home / "codex" / "config.toml").write_text(settings("codex", base, capsys))
    said = run(home, "codex", "exec", "--skip-git-repo-check", "-s", "read-only", "What does note.txt say?")
    assert "cat note.txt" in said and "succeeded" in said, said
    assert said.rstrip().endswith("The file says ramet-was-here."), said


def test_opencode_runs_a_command_and_repeats_what_it_read(
    base: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "opencode.json").write_text(settings("opencode", base, capsys))
    said = run(home, "opencode", "run", "-m", "ramet/default", "What does note.txt say?")
    assert "cat note.txt" in said and "failed" not in said, said
    assert said.rstrip().endswith("The file says ramet-was-here."), said
