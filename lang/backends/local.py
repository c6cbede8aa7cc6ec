"""An engine in this process, as a backend. Imports torch only when the first program needs it."""

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from ramet.lang.backends.base import ConnectOnce
from ramet.lang.suggest import did_you_mean
from ramet.runtime.build import build_engine
from ramet.runtime.client import EngineClient
from ramet.runtime.errors import BadRequest


class Engine(ConnectOnce):
    """A model in a thread of this process.

    model: a Hugging Face folder or hub id, a .gguf file, or None for the embedded default model. `settings` are those
    of `ramet.runtime.build.build_engine` (device, dtype, kv_tokens, policy, ...). Nothing is loaded before the first
    program runs, or `ready()` is called.
    """

    def __init__(self, model: str | None = None, *, model_path: str | None = None, **settings: Any) -> None:
        super().__init__()
        _check_settings(settings)
        self.model = model if model is not None else model_path
        self.settings = settings
        self._client: Any = None

    async def _connect(self) -> EngineClient:
        return await asyncio.to_thread(self._build)

    def _build(self) -> EngineClient:
        self._client = build_engine(self.model, **self.settings)
        client: EngineClient = self._client
        return client

    def close(self) -> None:
        """Stop the engine and give its memory back. Idempotent; the next program loads it again."""
        client, self._client, self._task = self._client, None, None
        if client is not None:
            client.stop()

    shutdown = close

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Engine({self.model!r})" if self.model is not None else "Engine()"


def _check_settings(settings: Mapping[str, object]) -> None:
    """At once, and not when the first program runs."""
    known = list(inspect.signature(build_engine).parameters)[1:]
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known) or f"Known: {', '.join(known)}."
            raise BadRequest(expected="a setting of Engine", got=name, at=f"Engine({name}=...)", hint=hint)
