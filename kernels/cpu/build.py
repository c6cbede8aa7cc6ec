"""Compile the C++ in this folder once, keep the library in the user's cache, load the variant that this CPU can run.

It does not know what the library computes. The idea: the sources include no library headers but the standard ones, so a
compiler needs seconds, not the minute that torch's headers take; the file's name is a hash of sources, compiler and
flags, so a changed source is a new file and an old one stays valid; and a build is renamed into place when whole, so
that any number of processes may build at once.

    $XDG_CACHE_HOME/ramet/<hash>/ramet_<source>_<variant>.so        default ~/.cache/ramet
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ramet.runtime.errors import NotBuilt

SOURCE_FOLDER = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
# -ffp-contract=off: which multiplications and additions fuse is written in the source, so that every instance of a
# template rounds alike, and a row gets the same bits in any batch
FLAGS = ("-O3", "-std=c++20", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-w")


class Variant(NamedTuple):
    """A build for CPUs that have certain features."""

    name: str
    cpu_flags: frozenset[str]
    """As /proc/cpuinfo spells them."""
    compiler_flags: tuple[str, ...]


_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512")
_AVX512_FLAGS = frozenset({"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"})

VARIANTS = (
    Variant("avx512_bf16", _AVX512_FLAGS | {"avx512_vnni", "avx512_bf16"}, (*_AVX512, "-mavx512vnni", "-mavx512bf16")),
    Variant("avx512_vnni", _AVX512_FLAGS | {"avx512_vnni"}, (*_AVX512, "-mavx512vnni")),
    Variant("avx2", frozenset({"avx2", "fma", "f16c"}), _AVX2),
    Variant("portable", frozenset(), ()),
)
"""Best first. `portable` is whatever the compiler makes of sixteen-lane vectors: slow on x86-64, fair on ARM."""


def usable_variants() -> list[Variant]:
    """The variants that this CPU can run, best first."""
    have = _cpu_flags()
    return [variant for variant in VARIANTS if variant.cpu_flags <= have]


def load_library(variant: str | None = None, source: str = "decoder") -> ctypes.CDLL:
    """The compiled library of one `source`.cpp; builds it where the cache has none. NotBuilt where there is no
    compiler, or it fails."""
    usable = usable_variants()
    chosen = next((v for v in usable if variant in (None, v.name)), None)
    if chosen is None:
        names = ", ".join(v.name for v in usable)
        raise NotBuilt(f"the native CPU variant {variant!r} on this CPU", hint=f"It runs {names}.")
    return _load(chosen, source)


@functools.cache
def _load(variant: Variant, source: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(build(variant, source=source)))


def build(variant: Variant, extra_flags: Sequence[str] = (), source: str = "decoder") -> Path:
    """Path of the built library; `extra_flags` (sanitizers) make a build of their own."""
    compiler = find_compiler()
    flags = (*FLAGS, *variant.compiler_flags, *extra_flags)
    target = cache_folder() / _fingerprint(compiler, flags) / f"ramet_{source}_{variant.name}.so"
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            fresh = Path(folder) / target.name
            _compile(compiler, flags, source, fresh)
            os.replace(fresh, target)  # atomic: a reader sees a whole file or none
    except OSError as error:
        raise NotBuilt(f"native code for this CPU ({error})", hint="Is the cache folder writable?") from error
    return target


def find_compiler() -> str:
    """$CXX, or the first compiler on the path. NotBuilt where there is none."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else list(COMPILERS)
    found = next((path for name in candidates if (path := shutil.which(name))), None)
    if found is None:
        raise NotBuilt(
            "native code for this CPU without a C++ compiler", hint="Install g++; the build takes seconds, once."
        )
    return found


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "ramet"


def _compile(compiler: str, flags: Sequence[str], source: str, target: Path) -> None:
    command = [compiler, *flags, str(SOURCE_FOLDER / f"{source}.cpp"), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotBuilt(f"native code for this CPU: {compiler} failed ({done.stderr.strip()[-400:]})")


def _fingerprint(compiler: str, flags: Sequence[str]) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256("\0".join((version, *flags)).encode())
    for source in sorted(SOURCE_FOLDER.glob("*.cpp")) + sorted(SOURCE_FOLDER.glob("*.h")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _cpu_flags() -> frozenset[str]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
