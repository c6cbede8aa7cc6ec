"""`build_engine` names the setting that it cannot take before it reads a model; nothing heavy is imported before."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.build import build_engine
from ramet.runtime.errors import BadRequest, ModelNotFound, NotBuilt, NotEnoughMemory, RametError
from ramet.runtime.weights.discover import find_default_model


def has_default_model() -> bool:
    try:
        find_default_model()
    except RametError:
        return False
    return True


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("dtype", "int3"),
        ("backend", "tpu"),
        ("policy", "fastest"),
        ("device", "abacus"),
        ("device", "cuda:77"),
        ("page_size", 0),
        ("page_size", 65),
        ("kv_cache_dtype", "fp8"),
        ("kv_tokens", 1),
        ("context_length", 0),
        ("max_running", 0),
        ("max_step_tokens", -1),
        ("cuda_graphs", True),  # tests run with device="auto" where there is no GPU
        ("tuning", True),
    ],
)
def test_a_setting_out_of_range_is_named(setting: str, value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        build_engine(**{setting: value})  # type: ignore[arg-type]
    assert caught.value.at == setting


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelNotFound, match="no-such-model"):
        build_engine("no-such-model")


@pytest.mark.skipif(not has_default_model(), reason="the embedded model is not installed")
def test_too_little_memory_is_told_before_anything_is_read() -> None:
    with pytest.raises(NotEnoughMemory, match=r"--kv-tokens \d+ would fit"):
        build_engine(kv_tokens=10**12)


@pytest.mark.skipif(not has_default_model(), reason="the embedded model is not installed")
@pytest.mark.parametrize(
    ("settings", "takes"),
    [
        ({"kv_cache_dtype": "float16", "backend": "native"}, "bfloat16, float32, int8"),
        ({"kv_cache_dtype": "float16"}, "bfloat16, float32, int8"),
        ({"kv_cache_dtype": "float32", "backend": "torch", "device": "cpu"}, "bfloat16, int8"),
    ],
)
def test_kv_of_a_type_that_nobody_writes_is_refused(settings: dict[str, Any], takes: str) -> None:
    with pytest.raises(NotBuilt, match=f"{settings['kv_cache_dtype']}.*It takes {takes}"):
        build_engine(kv_tokens=1024, **settings)


def test_importing_build_imports_no_torch() -> None:
    code = "import sys, ramet.runtime.build; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.skipif(not has_default_model(), reason="the embedded model is not installed")
def test_progress_ends_at_all_bytes_and_grammars_are_imported_late() -> None:
    code = """
import sys
from ramet.runtime.build import build_engine
told = []
with build_engine(kv_tokens=1024, progress=lambda done, total: told.append((done, total))) as client:
    assert client.card.context_length == 8192 and client.card.num_pages == 64, client.card
print(told[-1][0] == told[-1][1] > 90_000_000, "ramet.constrained.compile" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["True", "False"], ran.stderr


def test_a_path_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(RametError, match="model"):
        build_engine(tmp_path / "model.gguf")


def test_a_host_tier_on_a_cpu_is_refused_with_the_reason() -> None:
    with pytest.raises(BadRequest, match="host memory already"):
        build_engine(device="cpu", kv_host_gb=1.0)
