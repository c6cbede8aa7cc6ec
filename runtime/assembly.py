"""The wiring: weights -> model -> KV pool -> executor; radix tree -> cache -> scheduler; both -> engine -> client.

The only place that knows all the rooms. It decides what "auto" means and checks what a user may set; everything else is
the business of the part that it hands to the next.
"""

import functools
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import torch

from ramet.constrained.spec import Spec
from ramet.kernels._triton import HAS_TRITON
from ramet.radix.eviction import EvictionOrder, LeastRecentlyUsed
from ramet.radix.tree import RadixTree
from ramet.runtime import calibration
from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.clock import Clock, SystemClock
from ramet.runtime.config import AdmissionConfig, OrderName, QuotaConfig, SchedulingConfig
from ramet.runtime.engine import Engine
from ramet.runtime.errors import BadRequest, NotBuilt
from ramet.runtime.execution.local import LocalExecutor
from ramet.runtime.execution.mover import PageMover
from ramet.runtime.kv.allocator import PageAllocator
from ramet.runtime.kv.host_pages import HostPages
from ramet.runtime.kv.page_folder import PageFolder
from ramet.runtime.kv.tier import DiskTier, TierCosts
from ramet.runtime.local_client import LocalClient
from ramet.runtime.models.base import Model, WeightReader, kv_bytes_per_token, make_kv_pool
from ramet.runtime.models.batch import KVPool
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.graphed import GraphedModel, Recorder, measure_blocks_of
from ramet.runtime.models.native import KV_DTYPES, FormatChoice, NativeModel, build_native
from ramet.runtime.scheduler.admission import PageAdmission
from ramet.runtime.scheduler.cache import PrefixCache
from ramet.runtime.scheduler.pace import StepPace
from ramet.runtime.scheduler.policies.base import Order
from ramet.runtime.scheduler.policies.fcfs import FirstComeFirstServed
from ramet.runtime.scheduler.policies.longest_prefix import LongestPrefixFirst
from ramet.runtime.scheduler.program_scheduling import program_scheduling
from ramet.runtime.scheduler.quota import Quotas, over_quota_first
from ramet.runtime.scheduler.scheduler import Scheduler
from ramet.runtime.types import ModelCard
from ramet.runtime.weights.discover import find_model
from ramet.runtime.weights.fingerprint import fingerprint
from ramet.runtime.weights.load import LoadedModel, Progress, SizedModel, load_source
from ramet.runtime.weights.memory import free_memory_bytes, plan_memory
from ramet.runtime.weights.source import WeightSource, open_source

if TYPE_CHECKING:
    from ramet.constrained.grammar import CompiledGrammar

log = logging.getLogger(__name__)

BytesRead = Callable[[int, int], None]
"""Bytes so far, bytes in all."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_KV_DTYPES = {**_DTYPES, "int8": torch.int8}
_FORMATS: dict[str, FormatChoice] = {"auto": "auto", "bfloat16": "bf16", "float32": "fp32"}
_LEAST_KV_TOKENS = 256
_USUAL_KV_TOKENS = 65_536
"""On a CPU, room for so many tokens (or two contexts) is taken, not all that is free: others live there too."""
_STEP_TOKENS = {"cpu": 512, "cuda": 2048}
"""On a CPU, a step of more prompt tokens would hold running streams up for over a quarter of a second."""
_MAX_STALL_S = 0.15
"""What new prompts may add to a step in which others decode: their words keep coming while a long prompt enters."""
_GPU_SHARE = 0.85
_CPU_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of `build_engine`, which explains them, and the number of threads."""

    model: str | Path | None
    device: str
    dtype: str
    backend: str
    kv_tokens: int | None
    kv_cache_dtype: str
    page_size: int
    context_length: int | None
    policy: OrderName
    max_step_tokens: int | None
    max_running: int
    cache: bool
    chat_template: str | None
    name: str | None
    num_threads: int
    seed: int | None
    compile_limits: bool
    kv_disk: str | Path | None = None
    kv_disk_gb: float = 10.0
    kv_host_gb: float | None = None
    cuda_graphs: bool | None = None
    tuning: bool | None = None
    quotas: QuotaConfig = field(default_factory=QuotaConfig)


def assemble(options: Options, progress: BytesRead | None = None) -> LocalClient:
    """A client whose engine runs."""
    _check(options)
    device = _device(options.device)
    if options.kv_host_gb is not None and device.type == "cpu":
        hint = "On a CPU the KV pool is host memory already: give it more room with kv_tokens, or name a kv_disk."
        raise BadRequest(expected="a GPU for a host tier", got=str(device), at="kv_host_gb", hint=hint)
    if device.type == "cpu":
        _refuse_what_needs_a_gpu(options)
    if options.max_step_tokens is None:
        options = replace(options, max_step_tokens=_STEP_TOKENS[device.type])
    if device.type == "cpu":
        torch.set_num_threads(options.num_threads)
    source = open_source(find_model(None if options.model is None else str(options.model)))
    num_pages = _plan_pages(options, source, device)
    if device.type != "cpu" or options.backend != "auto":  # known before minutes of loading
        _refuse_other_kv(options, is_native=options.backend == "native")
    loaded = _load(options, source, device, progress)
    _refuse_other_kv(options, is_native=isinstance(loaded.model, NativeModel))
    allocator = PageAllocator(num_pages)
    compile_grammar = _grammar_compiler(loaded, limited=options.compile_limits, with_tables=device.type != "cpu")
    executor = _executor(options, loaded, allocator.pool_pages, compile_grammar)
    card, template = _card(options, loaded, num_pages), _template(options, loaded)
    tier = _disk_tier(options, loaded, executor, card.fingerprint)
    engine = _engine(options, allocator, executor, SystemClock(), tier)
    limit = options.quotas.tenant_branches
    client = LocalClient(engine, loaded.tokenizer, card, template, compile_grammar, max_tenant_branches=limit)
    return client.start()


def _check(options: Options) -> None:
    for name, allowed in (
        ("dtype", ("auto", *_DTYPES)),
        ("kv_cache_dtype", ("auto", *_KV_DTYPES)),
        ("backend", ("auto", "torch", "native")),
        ("policy", get_args(OrderName)),
    ):
        if getattr(options, name) not in allowed:
            raise BadRequest(expected=f"one of {', '.join(allowed)}", got=getattr(options, name), at=name)
    for name, least, most in (
        ("page_size", 1, 64),
        ("max_step_tokens", 1, None),
        ("max_running", 1, None),
        ("context_length", 1, None),
        ("kv_tokens", _LEAST_KV_TOKENS, None),
        ("num_threads", 1, None),
        ("kv_disk_gb", 0.001, None),
        ("kv_host_gb", 0.001, None),
    ):
        value = getattr(options, name)
        if value is not None and (value < least or (most is not None and value > most)):
            expected = f"{least} or more" if most is None else f"{least} to {most}"
            raise BadRequest(expected=expected, got=value, at=name)
    for name in ("kv_disk", "kv_host_gb"):
        if getattr(options, name) is not None and not options.cache:
            raise BadRequest(expected="the cache to be on", got="cache=False", at=name)


def _refuse_what_needs_a_gpu(options: Options) -> None:
    for name in ("cuda_graphs", "tuning"):
        if getattr(options, name):
            hint = "Leave it out: it is on where there is a GPU."
            raise BadRequest(expected=f"a GPU for {name}", got="cpu", at=name, hint=hint)


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise BadRequest(expected="auto, cpu, cuda or cuda:N", got=wanted, at="device")
    if device.type == "cuda" and not torch.cuda.is_available():
        hint = "This torch sees no GPU: use --device cpu, or install a CUDA build of torch."
        raise BadRequest(expected="a device of this machine", got=wanted, at="device", hint=hint)
    return device


# Memory, then weights ------------------------------------------------------------------------------------------------


def _dtype(options: Options) -> torch.dtype:
    return _DTYPES["bfloat16" if options.dtype == "auto" else options.dtype]


def _kv_dtype(options: Options) -> torch.dtype:
    return _dtype(options) if options.kv_cache_dtype == "auto" else _KV_DTYPES[options.kv_cache_dtype]


def _refuse_other_kv(options: Options, *, is_native: bool) -> None:
    """Who computes writes pages of a few dtypes: any other is refused, never replaced."""
    wanted = _kv_dtype(options)
    possible = tuple(KV_DTYPES) if is_native else (_dtype(options), torch.int8)
    if wanted not in possible:
        who = "the native backend" if is_native else f"a model in {_name(_dtype(options))} on torch"
        hint = f"It takes {', '.join(_name(dtype) for dtype in possible)}."
        raise NotBuilt(f"--kv-cache-dtype {_name(wanted)} with {who}", hint=hint)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _plan_pages(options: Options, source: WeightSource, device: torch.device) -> int:
    """KV pages, before anything is read. Raises NotEnoughMemory."""
    config, dtype = source.config.with_context_length(options.context_length), _dtype(options)
    free = free_memory_bytes(device)
    plan = functools.partial(
        plan_memory,
        config,
        source.num_parameters() * dtype.itemsize,
        dtype=dtype,
        free_bytes=free,
        max_step_tokens=_step_tokens(options),
        kv_dtype=_kv_dtype(options),
    )
    kv_tokens = options.kv_tokens
    if kv_tokens is None:
        left = free - plan(kv_tokens=_LEAST_KV_TOKENS).total_bytes
        share, most = (
            (_GPU_SHARE, left)
            if device.type == "cuda"
            else (_CPU_SHARE, max(_USUAL_KV_TOKENS, 2 * config.context_length))
        )
        fitting = int(left * share) // kv_bytes_per_token(config, _kv_dtype(options))
        kv_tokens = max(_LEAST_KV_TOKENS, min(fitting, most))
    plan(kv_tokens=kv_tokens)
    return -(-kv_tokens // options.page_size)


def _load(options: Options, source: WeightSource, device: torch.device, progress: BytesRead | None) -> LoadedModel:
    load = functools.partial(
        load_source,
        source,
        device=device,
        dtype=_dtype(options),
        context_length=options.context_length,
        progress=None if progress is None else _as_progress(progress),
    )
    if device.type != "cpu" or options.backend == "torch":
        if options.backend == "native":
            raise BadRequest(expected="a CPU for the native backend", got=str(device), at="backend")
        return load()
    try:
        return load(build=functools.partial(_native, options))
    except NotBuilt:
        if options.backend == "native":
            raise
        return load()


def _native(options: Options, config: ModelConfig, reader: WeightReader) -> SizedModel:
    if options.dtype not in _FORMATS:
        raise NotBuilt(f"dtype {options.dtype} on the native backend", hint=f"It takes {', '.join(_FORMATS)}.")
    return build_native(config, reader, weight_format=_FORMATS[options.dtype], threads=options.num_threads)


def _as_progress(told: BytesRead) -> Callable[[Progress], None]:
    return lambda progress: told(progress.done_bytes, progress.total_bytes)


# What works, what decides --------------------------------------------------------------------------------------------


def _grammar_compiler(loaded: LoadedModel, *, limited: bool, with_tables: bool) -> "Callable[[Spec], CompiledGrammar]":
    """Compiles over this model's vocabulary. Front ends and vocabulary are read when the first grammar comes: they take
    half a second, and an engine without grammars starts without them. `limited`: in a worker that can be killed.
    `with_tables`: those for the device too, so that no step waits for them."""

    @functools.cache
    def compiler() -> "Callable[[Spec], CompiledGrammar]":
        from ramet.constrained.compile import compile
        from ramet.constrained.vocabulary import Vocabulary

        vocabulary = Vocabulary.from_tokenizer(loaded.tokenizer, more_end_ids=loaded.end_token_ids)
        if limited:
            from ramet.constrained.service import CompileService

            return CompileService(vocabulary).compile
        return lambda spec: compile(spec, vocabulary)

    def compiled(spec: Spec) -> "CompiledGrammar":
        grammar = compiler()(spec)
        if with_tables:
            _ = grammar.tables  # made once, here
        return grammar

    return compiled


def _executor(
    options: Options, loaded: LoadedModel, pool_pages: int, compile_grammar: "Callable[[Spec], CompiledGrammar]"
) -> LocalExecutor:
    kv = make_kv_pool(loaded.config, pool_pages, options.page_size, _kv_dtype(options), loaded.device)
    return LocalExecutor(
        _with_graphs(options, loaded, kv),
        kv,
        vocabulary_size=loaded.tokenizer.vocabulary_size,
        end_ids=loaded.end_token_ids,
        compile_grammar=compile_grammar,
        seed=options.seed,
        num_torch_threads=1 if isinstance(loaded.model, NativeModel) else None,
    )


def _with_graphs(options: Options, loaded: LoadedModel, kv: KVPool, record: Recorder | None = None) -> Model:
    """On a GPU: the model with its kernels' blocks measured and its decode steps recorded, unless told otherwise."""
    if loaded.device.type != "cuda":
        return loaded.model
    if not HAS_TRITON:
        if options.cuda_graphs or options.tuning:
            raise NotBuilt("CUDA graphs and tuning without Triton", hint="Install triton, or leave both settings out.")
        log.warning("steps run without CUDA graphs, which is slower: there is no Triton")
        return loaded.model
    if options.tuning is not False:
        measure_blocks_of(loaded.model, kv)
    if options.cuda_graphs is False:
        return loaded.model
    return GraphedModel(loaded.model, kv, widest=-(-loaded.config.context_length // options.page_size), record=record)


def _store(options: Options) -> HostPages | PageFolder | None:
    """Where pages go that leave the pool."""
    folder = None
    if options.kv_disk is not None:
        folder = PageFolder(Path(options.kv_disk).expanduser(), int(options.kv_disk_gb * 2**30))
    return folder if options.kv_host_gb is None else HostPages(int(options.kv_host_gb * 2**30), folder)


def _disk_tier(
    options: Options, loaded: LoadedModel, executor: LocalExecutor, model_fingerprint: str
) -> DiskTier | None:
    """The tier, with its mover in the executor; None where neither folder nor host memory was named."""
    if (store := _store(options)) is None:
        return None
    mover = executor.mover = PageMover(executor.kv, store)
    made = f"{type(loaded.model).__name__} {options.dtype} {loaded.dtype} {executor.kv.dtype} {loaded.device.type}"
    how = f"{model_fingerprint} {made}"
    known = calibration.load(how)
    costs = TierCosts(
        read_s_per_page=known.read_s(mover.page_bytes) if known else None,
        prefill_s_per_token=known.prefill_s_per_token if known else None,
        of=how,
    )
    # engines that agree in all of this may read each other's KV; the numbers hold rotary stretching, windows, ...
    numbers = hashlib.blake2b(repr(loaded.config).encode(), digest_size=8).hexdigest()
    return DiskTier(store, f"{how} {numbers} {options.page_size}", options.page_size, mover.page_bytes, costs)


def _engine(
    options: Options, allocator: PageAllocator, executor: LocalExecutor, clock: Clock, tier: DiskTier | None
) -> Engine:
    tree = RadixTree(options.page_size, clock=clock.now) if options.cache else None
    admission = AdmissionConfig(max_step_tokens=_step_tokens(options), max_running=options.max_running)
    quotas = None if options.quotas == QuotaConfig() else Quotas(options.quotas)
    if options.policy == "fcfs" or options.policy == "lpm":
        cache = PrefixCache(allocator, options.page_size, tree, _minding(quotas, LeastRecentlyUsed()), tier)
        order = _order(SchedulingConfig(order=options.policy))
        scheduler = Scheduler(cache, order, PageAdmission(admission), clock, StepPace(_MAX_STALL_S), quotas)
        return Engine(scheduler, executor, mover=executor.mover)
    if tree is None:
        raise BadRequest(expected="fcfs or lpm where the cache is off", got=options.policy, at="policy")
    pool_tokens = allocator.num_pages * options.page_size
    programs = program_scheduling(
        options.policy,
        tree=tree,
        pool_tokens=pool_tokens,
        admission=admission,
        clock=clock,
        read_s_per_token=tier.read_s_per_token if tier is not None else lambda: None,
    )
    cache = PrefixCache(allocator, options.page_size, tree, _minding(quotas, programs.eviction), tier)
    scheduler = Scheduler(cache, programs.order, programs.admission, clock, StepPace(_MAX_STALL_S), quotas)
    return Engine(scheduler, executor, programs.feed, executor.mover)


def _minding(quotas: Quotas | None, order: EvictionOrder) -> EvictionOrder:
    return order if quotas is None else over_quota_first(order, quotas)


def _step_tokens(options: Options) -> int:
    assert options.max_step_tokens is not None, "assemble settles it once the device is known"
    return options.max_step_tokens


def _order(config: SchedulingConfig) -> Order:
    if config.order == "fcfs":
        return FirstComeFirstServed()
    return LongestPrefixFirst(ageing_tokens_per_s=config.ageing_tokens_per_s)


def _template(options: Options, loaded: LoadedModel) -> ChatTemplate:
    tokenizer = loaded.tokenizer
    return ChatTemplate(
        options.chat_template or loaded.chat_template,
        bos_token=tokenizer.special_text(tokenizer.bos_id),
        eos_token=tokenizer.special_text(tokenizer.eos_id),
        named=loaded.chat_templates if options.chat_template is None else None,
    )


def _card(options: Options, loaded: LoadedModel, num_pages: int) -> ModelCard:
    template = options.chat_template or loaded.chat_template
    return ModelCard(
        name=options.name or loaded.name,
        model_type=loaded.config.model_type,
        context_length=loaded.config.context_length,
        vocabulary_size=loaded.tokenizer.vocabulary_size,
        end_token_ids=loaded.end_token_ids,
        bos_token_id=loaded.tokenizer.bos_id,
        has_chat_template=template is not None,
        chat_template=template,
        tool_use_template=None if options.chat_template else loaded.chat_templates.get("tool_use"),
        dtype=_name(loaded.dtype),
        kv_dtype=_name(_kv_dtype(options)),
        device=str(loaded.device),
        num_pages=num_pages,
        page_size=options.page_size,
        parameters=loaded.num_parameters,
        fingerprint=fingerprint(loaded.path),
    )
