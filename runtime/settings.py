"""Where a setting's value comes from: flag, then environment, then file, then default. Alone reads the environment.

The config classes own names, units and defaults; this module knows only how to look. `ramet config` prints the result.
"""

import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from ramet.runtime.errors import BadRequest

T = TypeVar("T")

PREFIX = "RAMET_"
FILE_VARIABLE = "RAMET_CONFIG"
DEFAULT_FILE = "ramet.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One setting as it was resolved."""

    name: str
    value: object
    source: str
    """flag, environment, the file's name, or default."""


def resolve(
    kind: type[T],
    flags: Mapping[str, object],
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> tuple[T, list[Found]]:
    """A config of this dataclass, and where each of its fields came from.

    flags        what the command line gave; None means not given
    environment  RAMET_NAME=value; lists are separated by commas
    file         a TOML file of name = value; None: the one named by RAMET_CONFIG, else ./ramet.toml where there is one
    """
    environment = os.environ if environment is None else environment
    path, table = read_file(environment, file)
    found = [_find(field, kind, flags, environment, path, table) for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{item.name: item.value for item in found}), found


def read_file(environment: Mapping[str, str], file: Path | None = None) -> tuple[str, dict[str, Any]]:
    """The settings file's name and table; an empty table where there is none."""
    named = file or (Path(environment[FILE_VARIABLE]) if environment.get(FILE_VARIABLE) else None)
    path = named or Path(DEFAULT_FILE)
    if named is None and not path.is_file():
        return "", {}
    try:
        return path.name, tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        hint = "Mend the file, or unset RAMET_CONFIG."
        raise BadRequest(expected="a TOML file", got=str(error), at=str(path), hint=hint) from None


def secrets_from(environment: Mapping[str, str], file: Path | None) -> tuple[str, ...]:
    """API keys: one a line of a file, or RAMET_API_KEYS with commas. Never an argument, which others can see."""
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            hint = "One key a line."
            raise BadRequest(
                expected="a readable file of keys", got=error.strerror, at="--api-key-file", hint=hint
            ) from None
        return tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return tuple(key.strip() for key in environment.get(PREFIX + "API_KEYS", "").split(",") if key.strip())


def _find(
    field: "Field[Any]",
    kind: type,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    path: str,
    table: Mapping[str, Any],
) -> Found:
    name, wanted = field.name, typing.get_type_hints(kind)[field.name]
    if flags.get(name) is not None:
        return Found(name=name, value=flags[name], source="flag")
    variable = PREFIX + name.upper()
    if environment.get(variable):
        return Found(name=name, value=_convert(environment[variable], wanted, variable), source="environment")
    if name in table:
        return Found(name=name, value=_from_toml(table[name], wanted, name), source=path)
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return Found(name=name, value=default, source="default")


def _convert(text: str, wanted: Any, at: str) -> object:
    """An environment variable's text as the field's type."""
    kind = _plain(wanted)
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool:
        if text.lower() not in ("0", "1", "true", "false", "yes", "no", "on", "off"):
            raise BadRequest(expected="true or false", got=text, at=at)
        return text.lower() in ("1", "true", "yes", "on")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise BadRequest(expected=f"a number ({kind.__name__})", got=text, at=at) from None
    return text


def _from_toml(value: object, wanted: Any, at: str) -> object:
    kind = _plain(wanted)
    if typing.get_origin(kind) is tuple and isinstance(value, list):
        return tuple(value)
    if kind is float and isinstance(value, int):
        return float(value)
    if isinstance(kind, type) and not isinstance(value, kind):
        raise BadRequest(expected=kind.__name__, got=value, at=at)
    return value


def _plain(wanted: Any) -> Any:
    """The type without its `| None`."""
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(wanted) if part is not type(None))
    return wanted
