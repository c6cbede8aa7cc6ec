"""aider: the program itself, asked beside a file, streamed and whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE

pytestmark = pytest.mark.clients

NAME = "openai/m"


@pytest.mark.parametrize("stream", [False, True])
def test_the_program(tmp_path: Path, stream: bool) -> None:
    (tmp_path / "note.txt").write_text("Rivers flow to the sea.\n")
    # aider sends no limit, a tiny model rambles to the end of its context, and a cut answer is a fault to aider
    limited = f"- name: {NAME}\n  extra_params:\n    max_tokens: 100\n    stop: ['.']\n"
    (tmp_path / ".aider.model.settings.yml").write_text(limited)
    program = str(Path(sys.executable).parent / "aider")
    options = [
        "--no-git",
        "--yes-always",
        "--no-check-update",
        "--no-analytics",
        "--no-show-model-warnings",
        "--no-pretty",
    ]
    asked = ["--stream" if stream else "--no-stream", "--edit-format", "ask", "--message", "Say hello.", "note.txt"]
    environment = {"OPENAI_API_BASE": OPENAI_BASE, "OPENAI_API_KEY": "none", "HOME": str(tmp_path)}
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look at the network
    ran = subprocess.run(
        [program, "--model", NAME, "--map-tokens", "0", *options, *asked],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "Tokens:" in ran.stdout and "received" in ran.stdout, ran.stdout[-2000:]
