"""`build_engine`: from a model's name to a client that runs. Settles the CPU threads, then hands over to the assembly.

Imports no torch until it is called: an OpenMP runtime reads its environment once, when torch loads it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ramet.runtime.config import OrderName, QuotaConfig
from ramet.runtime.threads import settle_environment

if TYPE_CHECKING:
    from ramet.runtime.local_client import LocalClient

Backend = Literal["auto", "torch", "native"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
KvDType = Literal["auto", "float32", "bfloat16", "float16", "int8"]


def build_engine(
    model: str | Path | None = None,
    *,
    device: str = "auto",
    dtype: DType = "auto",
    backend: Backend = "auto",
    kv_tokens: int | None = None,
    kv_cache_dtype: KvDType = "auto",
    page_size: int = 16,
    context_length: int | None = None,
    policy: OrderName = "lpm",
    max_step_tokens: int | None = None,
    max_running: int = 256,
    cache: bool = True,
    chat_template: str | None = None,
    name: str | None = None,
    threads: int | None = None,
    seed: int | None = None,
    compile_limits: bool = False,
    kv_disk: str | Path | None = None,
    kv_disk_gb: float = 10.0,
    kv_host_gb: float | None = None,
    cuda_graphs: bool | None = None,
    tuning: bool | None = None,
    tenant_kv_tokens: int | None = None,
    program_kv_tokens: int | None = None,
    tenant_waiting: int | None = None,
    tenant_branches: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LocalClient:
    """Load a model and start an engine for it on a thread of this process. `stop()` the client when done with it.

    model            a folder with config.json, a .gguf file, the name of a found model; None: the embedded default
    device           "auto" (a GPU where there is one), "cpu", "cuda", "cuda:1"
    dtype            of weights, and of KV unless kv_cache_dtype says. "auto": bfloat16; on the native backend, the
                     weights as their file has them
    backend          who computes on a CPU: "native" code, "torch", or "auto": native where it can be built
    kv_tokens        tokens of KV to keep room for; None: what is free, within reason
    kv_cache_dtype   of keys and values in the cache. "auto": as dtype. "int8" takes half of bfloat16's memory and is
                     not exact (docs/kernels.md)
    page_size        tokens of a KV page, 1 to 64
    context_length   longest branch, in tokens; None: what the model was made for
    policy           who goes first: "fcfs"; "lpm", the longest cached prefix; of whole programs "las", "atlas",
                     "program-fcfs" or "gittins"
    max_step_tokens  tokens computed in a step; more: higher throughput, later next token. None: 512 on a CPU, where a
                     step of more would hold running streams up for over a quarter of a second; 2048 on a GPU
    max_running      sequences in a step, at most
    cache            False: nothing is kept after a turn
    chat_template    a jinja2 text in place of the model's own
    name             what the model is called to clients; None: its file's name
    threads          of a CPU; None: OMP_NUM_THREADS, else the physical cores
    seed             of generations that bring none; None: another one in each process
    compile_limits   grammars compile in a worker process under limits of time and memory: for schemas from strangers. A
                     script that turns it on needs the usual `if __name__ == "__main__"` guard
    kv_disk          a folder for KV that leaves the pool, and for the next start: what is read faster than it would be
                     computed is read. None: what leaves is computed again. Whoever can read the folder can read the
                     tokens' KV
    kv_disk_gb       how large the folder may grow (2**30 bytes); the least recently used goes first
    kv_host_gb       host memory for KV that leaves a GPU's pool, in front of the folder; refused on a CPU, where the
                     pool is host memory already
    cuda_graphs      decode steps are recorded once per number of rows and replayed; None: on a GPU. No GPU has run
                     them yet (docs/kernels.md)
    tuning           blocks of the Triton kernels that a step launches are timed once per device, and kept on disk;
                     None: on a GPU
    tenant_kv_tokens    KV tokens that one tenant's turns in flight may hold; more are refused (429), and of its cached
    program_kv_tokens   KV what is beyond four fifths of that goes first. The same of one program's turns
    tenant_waiting      turns of one tenant that may wait to start
    tenant_branches     branches of one tenant that may be open. None, each: no limit
    progress         called with the bytes read so far and in all

    Raises ModelNotFound, UnsupportedModel, WeightsCorrupt, NotEnoughMemory (with the setting that would fit),
    BadRequest for a setting out of range, NotBuilt for a backend that this machine can't have.
    """
    num_threads = settle_environment(threads)
    from ramet.runtime import assembly  # torch comes with it, and finds its environment settled

    options = assembly.Options(
        model=model,
        device=device,
        dtype=dtype,
        backend=backend,
        kv_tokens=kv_tokens,
        kv_cache_dtype=kv_cache_dtype,
        page_size=page_size,
        context_length=context_length,
        policy=policy,
        max_step_tokens=max_step_tokens,
        max_running=max_running,
        cache=cache,
        chat_template=chat_template,
        name=name,
        num_threads=num_threads,
        seed=seed,
        compile_limits=compile_limits,
        kv_disk=kv_disk,
        kv_disk_gb=kv_disk_gb,
        kv_host_gb=kv_host_gb,
        cuda_graphs=cuda_graphs,
        tuning=tuning,
        quotas=QuotaConfig(
            tenant_kv_tokens=tenant_kv_tokens,
            program_kv_tokens=program_kv_tokens,
            tenant_waiting=tenant_waiting,
            tenant_branches=tenant_branches,
        ),
    )
    return assembly.assemble(options, progress)
