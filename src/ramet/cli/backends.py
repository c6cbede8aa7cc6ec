"""What the commands that run programs share: which backend, and a progress line while a model loads."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ramet.cli.template import read_template
from ramet.lang.backends.base import Backend
from ramet.runtime.errors import BadRequest

_BAR = 30
"""Characters."""
_HERE = "Model and memory, without --url"
Model = Annotated[str | None, typer.Option(help="A folder, a .gguf file or a model's name.")]
Url = Annotated[str | None, typer.Option(help="A running `ramet serve` instead of a model here.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.", rich_help_panel=_HERE)]
DType = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=_HERE)]
KvTokens = Annotated[int | None, typer.Option(help="Tokens of KV memory.", rich_help_panel=_HERE)]
KvDType = Annotated[
    str | None, typer.Option("--kv-cache-dtype", help="auto, or int8 (half the memory).", rich_help_panel=_HERE)
]
ContextLength = Annotated[int | None, typer.Option(help="Tokens of one branch.", rich_help_panel=_HERE)]
Template = Annotated[
    Path | None, typer.Option("--chat-template", help="A jinja2 file in place of the model's.", rich_help_panel=_HERE)
]


def choose(model: str | None, url: str | None, *, chat_template: Path | None = None, **settings: Any) -> Backend:
    """A server where a URL is given, else an engine in this process with those settings that are given."""
    here: dict[str, Any] = {"model": model, "chat_template": read_template(chat_template), **settings}
    given = {name: value for name, value in here.items() if value is not None}
    if url is not None and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise BadRequest(
            expected="--url alone, or settings of a model here", got=f"--url and {flags}", at="--url",
            hint="A server was told its own when it was started.",
        )  # fmt: skip
    if url is not None:
        from ramet.lang.backends.remote import RuntimeEndpoint

        return RuntimeEndpoint(url)
    from ramet.lang.backends.local import Engine

    return Engine(progress=Progress().show, **given)


def close(backend: Backend) -> None:
    """Give memory and connections back, where the backend has any."""
    getattr(backend, "close", lambda: None)()


class Progress:
    """One line on stderr where that is a terminal: a bar, bytes read, of how many, how fast."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown = 0.0

    def show(self, done: int, total: int) -> None:
        """A callback for `build_engine(progress=...)`."""
        now = time.monotonic()
        if not sys.stderr.isatty() or (now - self._shown < 0.1 and done < total):
            return
        self._shown = now
        rate = done / max(now - self._started, 1e-6) / 1e6
        bar = "━" * round(_BAR * done / max(total, 1))
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\rweights {bar:─<{_BAR}} {done / 1e6:,.0f} of {total / 1e6:,.0f} MB  {rate:,.0f} MB/s {end}")
        sys.stderr.flush()
