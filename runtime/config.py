"""Settings of the engine, each a small frozen dataclass owned by the part that reads it. A leaf."""

from dataclasses import dataclass, field
from typing import Literal

RequestOrderName = Literal["fcfs", "lpm"]
OrderName = Literal["fcfs", "lpm", "las", "atlas", "program-fcfs", "gittins"]
"""Of requests, and of whole programs. `las` and `atlas`: the least served first; `program-fcfs`: by the program's
arrival; `gittins`: who is likely to end soonest, with fair share, retention by value and admission by working set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """What one step and one pool may carry. Read by scheduler/admission.py and by nothing else."""

    max_step_tokens: int = 2048
    """Tokens computed in a step, prompt and output together. More: higher throughput, later next token."""
    max_running: int = 256
    """Sequences in a step, at most."""
    high_water: float = 0.92
    """Share of the pages that running sequences may hold when one more is admitted; the rest is room to decode."""
    prefill_share: float = 0.5
    """Share of a step's tokens that one long prompt may take while other prompts wait: what a short prompt waits
    behind a long one is bounded by this and not by the long prompt's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceConfig:
    """Read by scheduler/pace.py."""

    max_stall_s: float | None = 0.25
    """Seconds that prompts may add to a step in which others decode; None: no bound but the step's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Read by scheduler/cache.py."""

    page_size: int = 16
    """Tokens of a KV page, 1 to 64."""
    is_on: bool = True
    """Off: nothing is kept after a turn; a plain engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What `ramet serve` builds its engine with: the arguments of `build_engine`, which has the defaults of those that
    are None."""

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    backend: str | None = None
    context_length: int | None = None
    kv_tokens: int | None = None
    kv_cache_dtype: str | None = None
    page_size: int | None = None
    policy: str | None = None
    cuda_graphs: bool | None = None
    tuning: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """Where KV goes that leaves the pool. Read by whoever builds an engine."""

    kv_disk: str | None = None
    """A folder, kept for the next start; None: what leaves is computed again."""
    kv_disk_gb: float = 10.0
    """How large the folder may grow, in 2**30 bytes; the least recently used goes first."""
    kv_host_gb: float | None = None
    """Host memory for KV that leaves a GPU, in 2**30 bytes; None: none. Not for a CPU, whose pool is host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig:
    """What one tenant (an API key, or who a program says) or one program may have at once; None: no limit. Read by
    scheduler/quota.py and by whoever opens branches."""

    tenant_kv_tokens: int | None = None
    """KV tokens of its turns in flight; its cached KV beyond four fifths of that goes first."""
    program_kv_tokens: int | None = None
    """KV tokens of one program's turns in flight."""
    tenant_waiting: int | None = None
    """Turns that wait to start."""
    tenant_branches: int | None = None
    """Open branches of all its programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingConfig:
    """Read by whoever builds a Scheduler."""

    order: RequestOrderName = "fcfs"
    """`fcfs`: first come, first served. `lpm`: longest cached prefix first, with ageing."""
    ageing_tokens_per_s: float = 512.0
    """`lpm`: a second of waiting weighs as much as so many cached tokens, so nobody waits for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All of them, as `build` hands them out."""

    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    pace: PaceConfig = field(default_factory=PaceConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
