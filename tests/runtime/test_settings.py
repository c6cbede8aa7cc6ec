"""Flag before environment before file before default; each says where it came from."""

from pathlib import Path

import pytest

from ramet.runtime.errors import BadRequest
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.settings import resolve, secrets_from


def test_precedence_and_sources(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('port = 1\nhost = "file"\ndrain_s = 5\nallow_origins = ["a"]\n')
    environment = {"RAMET_PORT": "2", "RAMET_HOST": "env"}
    config, found = resolve(ServeConfig, {"port": 3, "host": None}, environment=environment, file=file)
    sources = {item.name: item.source for item in found}
    assert (config.port, config.host, config.drain_s, config.allow_origins) == (3, "env", 5.0, ("a",))
    assert (sources["port"], sources["host"], sources["drain_s"]) == ("flag", "environment", "settings.toml")
    assert sources["splice"] == "default"


@pytest.mark.parametrize(("name", "value"), [("RAMET_PORT", "many"), ("RAMET_SPLICE", "maybe")])
def test_bad_environment_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(BadRequest) as caught:
        resolve(ServeConfig, {}, environment={name: value})
    assert caught.value.at == name


def test_bad_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("port = ")
    with pytest.raises(BadRequest):
        resolve(ServeConfig, {}, environment={}, file=file)


def test_keys_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\none\n\n two \n")
    assert secrets_from({}, file) == ("one", "two")
    assert secrets_from({"RAMET_API_KEYS": "a, b,"}, None) == ("a", "b")
    assert secrets_from({}, None) == ()
