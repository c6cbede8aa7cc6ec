"""`ramet doctor`: what this machine offers, what is missing, and one token as proof."""

import importlib.metadata
import importlib.util
import os
import secrets
import shutil
import socket
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ramet.bench.form import machine
from ramet.runtime.errors import RametError

_PACKAGES = (
    "torch",
    "triton",
    "tokenizers",
    "outlines-core",
    "lark",
    "msgspec",
    "fastapi",
    "llguidance",
    "transformers",
)


def main(
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure prefill and disk, for what the disk tier decides.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="Of --calibrate: the model; none: the embedded one.")] = None,
    device: Annotated[str, typer.Option(help="Of --calibrate: auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Of --calibrate: as you serve it.")] = "auto",
    kv_disk: Annotated[Path | None, typer.Option(help="Of --calibrate: a folder on the disk that you mean.")] = None,
) -> None:
    """Check processor, memory, versions, compiler, cache, port, default model, template; then generate one token."""
    if calibrate:
        _calibrate(kv_disk, model=model, device=device, dtype=dtype)
        return
    for name, value in _facts():
        print(f"{name:<16} {value}")
    print(f"{'one token':<16} {_one_token()}")


def _calibrate(kv_disk: Path | None, **settings: Any) -> None:
    from ramet.cli.calibrate import calibrate
    from ramet.runtime import calibration
    from ramet.runtime.build import build_engine

    folder = (kv_disk or calibration.file().parent).expanduser() / f"calibration-{secrets.token_hex(4)}"
    try:
        with build_engine(kv_tokens=2048, context_length=2048, policy="fcfs", kv_disk=folder, **settings) as client:
            for name, value in calibrate(client, folder):
                print(f"{name:<16} {value}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # prompts of ours: nobody will ask for them again


def _facts() -> list[tuple[str, str]]:
    about = machine()
    return [
        ("processor", f"{about['cpu']}, {about['cores']} cores, {' '.join(map(str, about['vector']))}"),  # type: ignore[call-overload]
        ("memory", f"{about['memory_gib']} GiB in all, {_available_gib():.1f} GiB available"),
        ("python", str(about["python"])),
        *[(package, _version(package)) for package in _PACKAGES],
        ("gpu", _gpu()),
        ("c++ compiler", shutil.which("c++") or shutil.which("g++") or "none: the torch path is used on CPUs"),
        ("cache folder", os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/ramet"),
        ("port 8000", "free" if _is_free(8000) else "taken: give another with --port"),
        ("default model", _default_model()),
        ("chat template", _chat_template()),
    ]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _available_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 2**30


def _gpu() -> str:
    if importlib.util.find_spec("torch") is None:
        return "unknown: torch is not installed"
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _default_model() -> str:
    from ramet.runtime.weights.source import find_default_model

    try:
        return str(find_default_model())
    except RametError as error:
        return f"missing. {error}"


def _chat_template() -> str:
    from ramet.runtime.weights.source import find_default_model, open_source

    try:
        template = open_source(find_default_model()).chat_template
    except RametError as error:
        return f"unknown: {error}"
    return "none: give one with --chat-template" if template is None else f"the model's own, {len(template)} characters"


def _one_token() -> str:
    import asyncio

    from ramet.runtime.build import build_engine
    from ramet.runtime.types import Finished, GenerateSpec, ProgramSpec, Sampling, TextPiece

    async def generate() -> str:
        branch = await client.open(ProgramSpec())
        await client.extend(branch, [TextPiece("The capital of France is")])
        events = client.generate(branch, GenerateSpec(max_tokens=1, sampling=Sampling(temperature=0)))
        text = "".join([getattr(event, "text", "") async for event in events if not isinstance(event, Finished)])
        await client.close(branch, program=True)
        return text

    began = time.perf_counter()
    try:
        client = build_engine(kv_tokens=1024)
    except RametError as error:
        return f"failed: {error}"
    try:
        text = asyncio.run(generate())
    finally:
        client.stop()
    return f"{text!r}, {time.perf_counter() - began:.1f} s after nothing was loaded"
