"""What one server holds for its life: the model's context once it is loaded, metrics, stores, limits."""

import time
from collections.abc import Callable
from typing import Any, Protocol

from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.client import EngineClient
from ramet.runtime.errors import RametError, Unavailable
from ramet.runtime.literals import TextCodec
from ramet.runtime.serve.account import turn_opener
from ramet.runtime.serve.background import BackgroundResponses
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.context import ServeContext
from ramet.runtime.serve.kept import KeptBranches
from ramet.runtime.serve.programs import OpenPrograms
from ramet.runtime.serve.prompt import PromptRenderer
from ramet.runtime.serve.reasoning import think_tags
from ramet.runtime.serve.records import Records
from ramet.runtime.serve.response_store import ResponseStore
from ramet.runtime.serve.tools.registry import find_format
from ramet.runtime.telemetry.traces import Traces
from ramet.runtime.types import EngineStatistics, Finished, ModelCard


class Metrics(Protocol):
    """What telemetry offers the front."""

    def observe(self, finished: list[Finished], outcome: str) -> None: ...

    def render(self, statistics: EngineStatistics | None) -> bytes: ...


class ServerState:
    """`app.state.ramet`."""

    def __init__(self, config: ServeConfig, metrics: Metrics, engine_status: Callable[[], dict[str, Any]]) -> None:
        self.config = config
        self.metrics = metrics
        self.responses = ResponseStore(max_responses=config.max_stored_responses, max_bytes=config.max_stored_bytes)
        self.background = BackgroundResponses()
        self.records = Records()
        self.programs = OpenPrograms(max_programs=config.max_programs, idle_s=config.program_idle_s)
        self.started = int(time.time())
        self.draining = False
        self.traces = Traces.from_environment() if config.tracing else None
        self._engine_status = engine_status
        self._context: ServeContext | None = None

    @property
    def status(self) -> str:
        """loading, ready, restarting, failed, draining."""
        return "draining" if self.draining else str(self._engine_status()["status"])

    def health(self) -> dict[str, Any]:
        """The body of /health."""
        context = self._context
        counts = {"in_flight": context.in_flight} if context else {}
        return {**self._engine_status(), "status": self.status, **counts}

    def set_context(self, context: ServeContext) -> None:
        """The model is loaded (again): memories of the last one's tokens stay good only for the same model."""
        if self._context is not None and self._context.card.name == context.card.name:
            context.own_turns, context.own_texts = self._context.own_turns, self._context.own_texts
        self._context = context

    @property
    def context(self) -> ServeContext | None:
        return self._context

    def ready_context(self) -> ServeContext:
        """The served model, or an error that says when to come back."""
        if self.draining:
            raise Unavailable("the server is stopping", retry_after_s=5)
        if self._context is None or self.status == "failed":
            raise self._not_ready()
        return self._context

    def _not_ready(self) -> RametError:
        status = self.status
        if status == "failed":
            return Unavailable(
                "the engine stopped and was not restarted; the server's log has the reason", retry_after_s=60
            )
        return Unavailable(f"the engine is {status}", retry_after_s=2)


def make_context(
    engine: EngineClient, card: ModelCard, tokenizer: TextCodec, template: ChatTemplate, config: ServeConfig
) -> ServeContext:
    """The served model's formats, found in its chat template unless the configuration names them."""
    source = card.chat_template or ""
    thinks = config.reasoning_format == "think" or (config.reasoning_format is None and think_tags.recognises(source))
    return ServeContext(
        engine=engine,
        card=card,
        renderer=PromptRenderer(tokenizer=tokenizer, template=template),
        tool_format=find_format(card.tool_use_template or source, config.tool_format),
        thinks=thinks,
        turn_opener=turn_opener(template, tokenizer),
        kept=KeptBranches(engine, max_branches=config.max_programs, idle_s=config.program_idle_s),
        config=config,
    )
