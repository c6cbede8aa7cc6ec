"""Every route of the OpenAPI document under thousands of legal and illegal requests: no 5xx, no hang, nothing left.

The server has a short context, so that whatever is asked for ends soon; all else is as users have it.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import own_server

pytestmark = pytest.mark.clients

ANSWER_S = 30
"""An answer that takes longer is a hang."""


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with own_server("--context-length", "128", "--kv-tokens", "8192", "--max-body", "1000000") as found:
        yield found


@pytest.mark.parametrize(
    ("phase", "at_least", "options"),
    [
        # the specs of grammars nest without end, and listing their boundary values takes the fuzzer minutes
        ("examples,coverage", 2000, ["--exclude-path-regex", "branches/.*/generate"]),
        ("fuzzing", 1000, ["--max-examples", "60"]),
    ],
    ids=["coverage", "fuzzing"],
)
def test_nothing_breaks(
    base: str, phase: str, at_least: int, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Path(__file__).parent
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{base}/openapi.json", "--phases", phase),
        *("--checks", "not_a_server_error", "--request-timeout", str(ANSWER_S), "--continue-on-failure"),
        *("--suppress-health-check", "all", "--seed", "1", "--no-shrink", "--workers", "2", *options),
    ]
    environment = {"RAMET_FUZZED": base, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(here)}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **environment})
    report = f"{ran.stdout[-6000:]}\n{ran.stderr[-2000:]}"
    assert ran.returncode == 0, report
    generated = re.search(r"(\d+) generated, (\d+) passed", ran.stdout)
    assert generated is not None and int(generated[1]) >= at_least, report
    with capsys.disabled():
        print(f"schemathesis, {phase}: {generated[0]}")
    _assert_nothing_is_left(base)


def _assert_nothing_is_left(base: str) -> None:
    end = time.monotonic() + 20
    while (found := _metrics(base))["ramet_requests_running"] or found['ramet_kv_tokens{state="leased"}']:
        assert time.monotonic() < end, f"expected nothing running and nothing leased, got {found}"
        time.sleep(0.2)
    assert httpx.get(f"{base}/health", timeout=ANSWER_S).json()["status"] == "ready"
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    assert httpx.post(f"{base}/v1/chat/completions", json=body, timeout=ANSWER_S).status_code == 200


def _metrics(base: str) -> dict[str, float]:
    lines = httpx.get(f"{base}/metrics", timeout=ANSWER_S).text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}
