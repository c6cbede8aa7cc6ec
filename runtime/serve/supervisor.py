"""Keeps one engine process alive: starts it, notices its death, restarts it once, and says what happened."""

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ramet.runtime.errors import EngineFailed
from ramet.runtime.serve.ipc_client import IpcClient

log = logging.getLogger("ramet.serve")

State = Literal["loading", "ready", "restarting", "failed", "stopping"]

MAX_RESTARTS = 1
"""Deaths survived in a row; a second one within STEADY_S of the restart is for the operator."""
STEADY_S = 600.0


class Supervisor:
    """Owns the engine's process and the client that speaks to it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._folder = tempfile.TemporaryDirectory(prefix="ramet-")
        self.client = IpcClient(f"ipc://{Path(self._folder.name) / 'engine'}")
        self.state: State = "loading"
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._restarted = asyncio.Event()

    async def start(self) -> None:
        """Start the engine; returns at once, `client.became_ready` tells when it serves."""
        self.client.start()
        self._process = await self._spawn()
        self._watch = asyncio.create_task(self._keep_alive(), name="engine watch")

    async def wait_ready(self) -> None:
        """Until the engine serves, or EngineFailed with the reason it gave."""
        ready = asyncio.ensure_future(self.client.became_ready.wait())
        assert self._watch is not None
        await asyncio.wait([ready, self._watch], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            raise EngineFailed(self.client.crash or "the engine process ended before it was ready")
        self.state = "ready"

    async def wait_restarted(self) -> None:
        """Until an engine that was restarted serves again."""
        await self._restarted.wait()
        self._restarted.clear()

    async def stop(self) -> None:
        """End the engine: politely, then not."""
        self.state = "stopping"
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.client.stop()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._folder.cleanup()

    async def _spawn(self) -> asyncio.subprocess.Process:
        arguments = [self.client.address, json.dumps(self._settings)]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "ramet.runtime.serve.engine_process",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a signal to our group (Ctrl-C) is ours: the front decides when we stop
            env={**os.environ, "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")},
        )

    async def _keep_alive(self) -> None:
        clock = asyncio.get_running_loop()
        num_restarts, started_s = 0, clock.time()
        while self._process is not None:
            code = await self._process.wait()
            if clock.time() - started_s > STEADY_S:
                num_restarts = 0
            self.client.fail(EngineFailed("the engine stopped while it worked on this request"))
            if self.client.crash is not None or num_restarts >= MAX_RESTARTS:
                self.state = "failed"
                log.error("the engine ended (%s) and stays down: %s", _how(code), self.client.crash or "it died twice")
                return
            num_restarts, started_s, self.state = num_restarts + 1, clock.time(), "restarting"
            log.error("the engine ended (%s); requests in flight failed; it is started once more", _how(code))
            self._process = await self._spawn()
            self._back = asyncio.create_task(self._mark_ready())

    async def _mark_ready(self) -> None:
        await self.client.became_ready.wait()
        self.state = "ready"
        self._restarted.set()
        log.warning("the engine is back")


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
