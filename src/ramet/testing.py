"""Test doubles for Ramet's own tests and yours: a whole engine without weights, tensors or waiting.

>>> import asyncio
>>> from ramet.runtime.types import GenerateSpec, ProgramSpec, TextPiece
>>> async def main() -> str:
...     async with scripted_client({"capital of France": "Paris"}) as client:
...         branch = await client.open(ProgramSpec())
...         await client.extend(branch, [TextPiece("The capital of France is ")])
...         events = [event async for event in client.generate(branch, GenerateSpec())]
...         return await client.text(branch)
>>> asyncio.run(main())
'The capital of France is Paris'
"""

from collections.abc import Callable, Mapping, Sequence

from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.clock import Clock, SystemClock
from ramet.runtime.config import (
    AdmissionConfig,
    CacheConfig,
    EngineConfig,
    PaceConfig,
    RequestOrderName,
    SchedulingConfig,
)
from ramet.runtime.engine import Engine, Executor
from ramet.runtime.local_client import LocalClient
from ramet.runtime.scheduler.build import build_scheduler
from ramet.runtime.types import ModelCard, StepPlan, StepResult
from ramet.scripted.executor import ScriptedExecutor
from ramet.scripted.grammar import GrammarFactory, over_bytes
from ramet.scripted.model import Logits, Model, Prefix, ScriptedModel
from ramet.scripted.tokenizer import ByteTokenizer

__all__ = [
    "ByteTokenizer",
    "Logits",
    "ManualClock",
    "Prefix",
    "RecordingExecutor",
    "ScriptedExecutor",
    "ScriptedModel",
    "scripted_client",
    "scripted_engine",
]

Replies = Model | str | Sequence[str] | Mapping[str, str] | Callable[[str], str]
"""A model, or what ScriptedModel.replying takes."""


class ManualClock:
    """Time that passes when it is told to."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"seconds: expected 0 or more, got {seconds}")
        self._now_s += seconds


class RecordingExecutor:
    """Passes plans on and keeps them, with their results."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.plans: list[StepPlan] = []
        self.results: list[StepResult] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan._replace(rows=[row._replace(pages=tuple(row.pages)) for row in plan.rows]))
        result = self.inner.execute(plan)
        self.results.append(result)
        return result

    @property
    def num_computed(self) -> int:
        """Tokens that went through the model."""
        return sum(len(row.tokens) for plan in self.plans for row in plan.rows)


def scripted_engine(
    model: Replies | None = None,
    *,
    num_pages: int = 1024,
    page_size: int = 16,
    cache: bool = True,
    order: RequestOrderName = "fcfs",
    max_step_tokens: int = 2048,
    max_running: int = 256,
    high_water: float = 0.92,
    clock: Clock | None = None,
    wrap: Callable[[Executor], Executor] | None = None,
    grammars: GrammarFactory = over_bytes,
) -> Engine:
    """An engine over a scripted model (default: seeded noise). `wrap` puts something around its executor, such as
    RecordingExecutor."""
    config = EngineConfig(
        admission=AdmissionConfig(max_step_tokens=max_step_tokens, max_running=max_running, high_water=high_water),
        cache=CacheConfig(page_size=page_size, is_on=cache),
        scheduling=SchedulingConfig(order=order),
        pace=PaceConfig(max_stall_s=None),  # a scripted step takes no time that could be measured
    )
    scheduler = build_scheduler(num_pages, clock or SystemClock(), config)
    pool_pages = scheduler.cache.allocator.pool_pages
    ends = ByteTokenizer.end_ids
    executor = ScriptedExecutor(_model(model), pool_pages, page_size, end_token_ids=ends, grammars=grammars)
    return Engine(scheduler, wrap(executor) if wrap is not None else executor)


def scripted_client(
    model: Replies | None = None,
    *,
    num_pages: int = 1024,
    page_size: int = 16,
    cache: bool = True,
    order: RequestOrderName = "fcfs",
    max_step_tokens: int = 2048,
    max_running: int = 256,
    high_water: float = 0.92,
    context_length: int = 8192,
    clock: Clock | None = None,
    wrap: Callable[[Executor], Executor] | None = None,
    grammars: GrammarFactory = over_bytes,
) -> LocalClient:
    """A complete EngineClient over a scripted engine and ByteTokenizer; `async with` it, or `start` and `stop` it."""
    engine = scripted_engine(
        model,
        num_pages=num_pages,
        page_size=page_size,
        cache=cache,
        order=order,
        max_step_tokens=max_step_tokens,
        max_running=max_running,
        high_water=high_water,
        clock=clock,
        wrap=wrap,
        grammars=grammars,
    )
    codec = ByteTokenizer()
    template = ChatTemplate(codec.chat_template, eos_token=codec.special_text(codec.eos_id))
    card = ModelCard(
        name="scripted",
        model_type="scripted",
        context_length=context_length,
        vocabulary_size=codec.vocabulary_size,
        end_token_ids=codec.end_ids,
        bos_token_id=codec.bos_id,
        chat_template=codec.chat_template,
        num_pages=num_pages,
        page_size=page_size,
    )
    return LocalClient(engine, codec, card, template, grammars)


def _model(model: Replies | None) -> Model:
    if model is None:
        return ScriptedModel.seeded()
    if isinstance(model, str | Sequence | Mapping) or not isinstance(model, Model):
        return ScriptedModel.replying(model)
    return model
