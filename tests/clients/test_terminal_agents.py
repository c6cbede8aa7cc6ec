"""Codex and opencode: each reads a file with its shell tool, told to by a scripted model, and repeats what it says.

Their settings are what `ramet launch` prints. Run by scripts/test-terminal-agents, which installs them.
"""

import importlib.util
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from ramet.cli.launch import main as launch
from ramet.constrained.compile import compile
from ramet.constrained.vocabulary import Vocabulary
from ramet.testing import ByteTokenizer, scripted_client

pytestmark = pytest.mark.clients
BINARIES = Path(os.environ.get("RAMET_NPM", "/nowhere"))
SCRIPTED = Path(__file__).parents[1] / "runtime" / "serve" / "scripted.py"
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
    spec = importlib.util.spec_from_file_location("scripted_server", SCRIPTED)
    assert spec is not None and spec.loader is not None
    scripted: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scripted)
    vocabulary = Vocabulary.from_tokenizer(ByteTokenizer())
    client = scripted_client(
        reply,
        grammars=lambda spec: compile(spec, vocabulary),
        num_pages=40_000,  # a token a byte, and their instructions are long
        context_length=300_000,
        max_step_tokens=100_000,
    ).start()
    server = uvicorn.Server(uvicorn.Config(scripted.make_app(client, template=scripted.HERMES), port=0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    client.stop()


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
