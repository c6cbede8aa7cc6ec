"""The server's life: bind, load, serve, drain, stop. One event loop for the front, one process for the engine."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

import uvicorn

from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.errors import BadRequest, RametError
from ramet.runtime.serve.app import create_app
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.state import ServerState, make_context
from ramet.runtime.serve.supervisor import Supervisor
from ramet.runtime.telemetry.prometheus import Metrics
from ramet.runtime.tokenizer import Tokenizer

log = logging.getLogger("ramet.serve")


def run_server(config: ServeConfig, engine_settings: Mapping[str, Any]) -> int:
    """Serve until a signal; the exit code."""
    listener = bind(config)
    with contextlib.suppress(ImportError):
        import uvloop

        return int(uvloop.run(Server(config, engine_settings, listener).run()))
    return asyncio.run(Server(config, engine_settings, listener).run())


def bind(config: ServeConfig) -> socket.socket:
    """The listening socket, before minutes of loading: a taken port is told at once."""
    listener = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        raise BadRequest(
            expected="a free address",
            got=f"{config.host}:{config.port} ({error.strerror})",
            at="--port",
            hint="Choose another with --port, or 0 for any.",
        ) from None
    listener.listen(4096)
    return listener


class Server:
    """One run."""

    def __init__(self, config: ServeConfig, engine_settings: Mapping[str, Any], listener: socket.socket) -> None:
        self._config = config
        self._listener = listener
        self._supervisor = Supervisor(engine_settings)
        self._state = ServerState(config, Metrics(vllm_names=config.vllm_metric_names), self._engine_status)
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                create_app(self._state),
                log_level="warning",
                access_log=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=1,
                lifespan="off",
                server_header=False,
            )
        )
        self._began = time.perf_counter()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, stop)
        await self._supervisor.start()
        front = asyncio.create_task(self._uvicorn.serve(sockets=[self._listener]))
        follow = asyncio.create_task(self._follow_engine())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, follow, front], return_when=asyncio.FIRST_COMPLETED)
        failed = follow.done() and not stop.is_set()
        if not failed:
            await self._drain()
        for task in (follow, stopping):
            task.cancel()
        await asyncio.gather(follow, stopping, return_exceptions=True)
        self._uvicorn.should_exit = True
        await asyncio.gather(front, return_exceptions=True)
        await self._supervisor.stop()
        return 1 if failed else 0

    def _on_signal(self, stop: asyncio.Event) -> None:
        if stop.is_set():  # the second one does not wait
            self._config = ServeConfig(drain_s=0)
        stop.set()

    async def _drain(self) -> None:
        """No new requests; the running ones may end, within the limit."""
        self._state.draining = True
        context = self._state.context
        end = time.perf_counter()
        while context and context.in_flight and time.perf_counter() - end < self._config.drain_s:
            await asyncio.sleep(0.05)

    async def _follow_engine(self) -> None:
        """Set the context whenever the engine becomes ready; return when it can't."""
        try:
            await self._supervisor.wait_ready()
        except RametError as error:
            print(f"ramet serve: {error}", file=sys.stderr, flush=True)
            return
        self._adopt()
        self._announce()
        while True:
            await self._supervisor.wait_restarted()
            self._adopt()

    def _adopt(self) -> None:
        client = self._supervisor.client
        tokenizer, tool_use = Tokenizer.from_bytes(client.tokenizer), client.card.tool_use_template
        special_text = tokenizer.special_text
        template = ChatTemplate(
            client.card.chat_template,
            bos_token=special_text(tokenizer.bos_id),
            eos_token=special_text(tokenizer.eos_id),
            named=None if tool_use is None else {"tool_use": tool_use},
        )
        self._state.set_context(make_context(client, client.card, tokenizer, template, self._config))

    def _engine_status(self) -> dict[str, Any]:
        supervisor = self._supervisor
        status: dict[str, Any] = {"status": supervisor.state}
        if supervisor.state == "loading" and supervisor.client.loading.bytes_total:
            loading = supervisor.client.loading
            status["loading"] = {"bytes_done": loading.bytes_done, "bytes_total": loading.bytes_total}
        return status

    def _announce(self) -> None:
        card = self._supervisor.client.card
        host, port = self._listener.getsockname()[:2]
        base = f"http://{host}:{port}"
        name = self._config.served_name or card.name
        size = f"{card.model_type}, {card.parameters / 1e6:.0f}M parameters, {card.dtype} on {card.device}"
        body = '{"messages": [{"role": "user", "content": "Hello"}]}'
        kv = f"{card.kv_dtype} KV memory" if card.kv_dtype not in ("", card.dtype) else "KV memory"
        lines = [
            f"ramet: {name} ready in {time.perf_counter() - self._began:.1f} s at {base}",
            f"  {size}, context {card.context_length}, {kv} for {card.num_pages * card.page_size} tokens",
            f"  curl {base}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
            f'  python: openai.OpenAI(base_url="{base}/v1", api_key="none")',
            f"  {base}/docs, {base}/metrics",
        ]
        print("\n".join(lines), flush=True)


class _Uvicorn(uvicorn.Server):
    """Signals are the server's own business: draining comes first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield
