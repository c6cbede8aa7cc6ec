"""The deciding half imports no torch, the face is light, and the name `kernels` stays free."""

import pkgutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

import ramet

DECIDING = ["ramet.radix", "ramet.runtime.scheduler", "ramet.runtime.simulate"]
SINGLE = ["ramet.runtime.types", "ramet.runtime.client", "ramet.runtime.errors", "ramet.runtime.engine"]


def modules_of(package: str) -> list[str]:
    path = import_module(package).__path__
    return [module.name for module in pkgutil.walk_packages(path, f"{package}.")]


def in_fresh_interpreter(code: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_deciding_half_imports_no_torch() -> None:
    names = [*SINGLE, *(name for package in DECIDING for name in modules_of(package))]
    imports = "\n".join(f"import {name}" for name in names)
    assert (
        in_fresh_interpreter(f"import sys\n{imports}\nprint('torch' in sys.modules, 'triton' in sys.modules)")
        == "False False"
    )


def test_face_imports_no_torch_and_is_light() -> None:
    timed = "t = time.perf_counter(); import ramet; s = time.perf_counter() - t"
    code = f"import sys, time; {timed}; print('torch' in sys.modules, s)"
    runs = [in_fresh_interpreter(code).split() for _ in range(3)]
    assert all(has_torch == "False" for has_torch, _ in runs)
    assert min(float(seconds) for _, seconds in runs) < 0.150


def test_the_name_kernels_is_not_ours() -> None:
    found = in_fresh_interpreter(
        "from importlib.util import find_spec; s = find_spec('kernels'); print(s and s.origin)"
    )
    assert "None" in found or "site-packages" in found


@pytest.mark.parametrize("package", ["lang", "runtime", "radix", "kernels", "constrained", "cli", "bench"])
def test_package_inits_are_empty(package: str) -> None:
    root = find_spec(f"ramet.{package}")
    assert root is not None
    inits = [
        root,
        *(
            find_spec(m.name)
            for m in pkgutil.walk_packages(root.submodule_search_locations, f"ramet.{package}.")
            if m.ispkg
        ),
    ]
    for spec in inits:
        assert spec is not None and spec.origin is not None
        with open(spec.origin, encoding="utf-8") as file:
            assert file.read() == "", f"{spec.origin} must stay empty: importing a module inside would run it"


def test_every_public_name_exists() -> None:
    for name in ramet.__all__:
        assert getattr(ramet, name) is not None
