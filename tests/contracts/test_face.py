"""`import ramet`: quick, without torch, and every public name is there."""

import subprocess
import sys

import pytest

import ramet


def in_fresh_interpreter(code: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", ramet.__all__)
def test_public_name_is_there(name: str) -> None:
    assert getattr(ramet, name) is not None
    assert name in dir(ramet)


def test_lists_agree() -> None:
    assert set(ramet.__all__) == {*ramet._HOMES, *ramet._ALIASES, "__version__"}
    with pytest.raises(AttributeError, match="nonsense"):
        ramet.nonsense  # noqa: B018


def test_import_is_quick_and_loads_no_torch() -> None:
    code = "import time; t = time.perf_counter(); import ramet; print(time.perf_counter() - t)"
    assert min(float(in_fresh_interpreter(code)) for _ in range(3)) < 0.15


def test_the_whole_language_is_quick_and_loads_no_torch() -> None:
    words = ", ".join(name for name in ramet.__all__ if name != "__version__")
    code = (
        f"import time; t = time.perf_counter(); from ramet import {words}; import sys;"
        "heavy = {'torch', 'numpy', 'outlines', 'pydantic', 'fastapi', 'httpx', 'transformers'} & set(sys.modules);"
        "print(time.perf_counter() - t, sorted(heavy))"
    )
    outcomes = [in_fresh_interpreter(code).split(" ", 1) for _ in range(3)]
    assert {heavy for _, heavy in outcomes} == {"[]"}
    assert min(float(elapsed) for elapsed, _ in outcomes) < 0.6
