"""`ramet config`: every setting, its value, and where the value came from."""

from typing import Annotated

import typer


def main(file: Annotated[str | None, typer.Option(help="A TOML file instead of ramet.toml.")] = None) -> None:
    """Print each setting of the server and the engine with its source. Keys are counted, never shown."""
    from pathlib import Path

    from ramet.runtime.config import ModelOptions, QuotaConfig, TierConfig
    from ramet.runtime.serve.config import ServeConfig
    from ramet.runtime.settings import Found, resolve

    for kind in (ServeConfig, ModelOptions, TierConfig, QuotaConfig):
        _, found = resolve(kind, {}, file=Path(file) if file else None)
        print(f"[{kind.__name__}]")
        for item in found:
            print(_line(item) if isinstance(item, Found) else item)


def _line(item: object) -> str:
    from ramet.runtime.settings import Found

    assert isinstance(item, Found)
    value = f"{len(item.value)} keys" if item.name == "api_keys" and isinstance(item.value, tuple) else item.value
    return f"  {item.name:<22} {value!s:<28} {item.source}"
