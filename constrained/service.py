"""Compilation under limits: the front end runs in a worker process that can be killed, the rest here.

What hostile input can make slow or large (schema algebra, pattern automata, Lark's analysis, their lowering) happens
in the worker first, under a wall clock, a CPU limit and an address space limit. Its result is a value; lowering that
value again here costs no more than it did there. A worker that passes a limit is killed and another is spawned; the
request gets GrammarRefused with the limit's name. One key is compiled once, by the vocabulary's cache.
"""

import contextlib
import logging
import multiprocessing
import pickle
import queue
import resource
import signal
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import msgspec

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.lowering import lower
from ramet.constrained.automaton.machine import Machine
from ramet.constrained.compile import FrontEnd, back_end, cache_of, front_end, key_of
from ramet.constrained.disk_cache import DiskCache
from ramet.constrained.grammar import CompiledGrammar, Engine
from ramet.constrained.parts import Parts
from ramet.constrained.spec import Spec
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import EngineFailed, GrammarRefused, NotBuilt, RametError, Verbatim

MAX_SPEC_BYTES = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CompileLimits:
    """What one compilation may cost. Read by the service and by nothing else."""

    wall_s: float = 5.0
    """Seconds from the worker's taking the job to its answer."""
    cpu_s: int = 5
    """Seconds of the worker's CPU time, whole ones."""
    memory_bytes: int = 1 << 30
    """Address space that the worker may take beyond what it has when idle."""
    num_workers: int = 1
    """Compilations at a time."""


class CompileService:
    """Compiles for one vocabulary. Thread-safe. `close` it, or use it in a `with` statement."""

    def __init__(
        self, vocabulary: Vocabulary, limits: CompileLimits | None = None, disk: DiskCache | None = None
    ) -> None:
        """`disk` keeps front ends' results over restarts; None: what RAMET_GRAMMAR_CACHE names, if anything."""
        self.vocabulary, self.limits = vocabulary, limits or CompileLimits()
        self._disk = disk if disk is not None else DiskCache.from_environment()
        self._threads = ThreadPoolExecutor(self.limits.num_workers, thread_name_prefix="ramet-compile")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._num_kills = 0
        self._workers = [_Worker(self.limits) for _ in range(self.limits.num_workers)]
        for worker in self._workers:
            self._idle.put(worker)

    def submit(self, spec: Spec) -> "Future[CompiledGrammar]":
        """The grammar, later. The future's exception is a GrammarRefused for what the client can mend."""
        cached = cache_of(self.vocabulary).find(key_of(spec))
        return cached if cached is not None else self._threads.submit(self.compile, spec)

    def compile(self, spec: Spec) -> CompiledGrammar:
        """The grammar, waiting for it."""
        key = key_of(spec)
        size = len(key) - key.count(b"\\")  # a schema is text inside the key: its quotation marks are escaped there
        if size > MAX_SPEC_BYTES:
            raise _over("spec size", f"at most {MAX_SPEC_BYTES} bytes", f"{size} bytes")
        return cache_of(self.vocabulary).get(key, lambda engine: self._make(spec, key, engine))

    @property
    def num_kills(self) -> int:
        """Workers that passed a limit so far."""
        return self._num_kills

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Processes of the workers that are up."""
        return tuple(worker.pid for worker in self._workers if worker.pid is not None)

    def close(self) -> None:
        """End threads and workers."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for _ in range(self.limits.num_workers):
            self._idle.get().close()

    def __enter__(self) -> "CompileService":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _make(self, spec: Spec, key: bytes, engine: Engine) -> CompiledGrammar:
        try:
            return self._made(spec, key, engine)
        except (RametError, MemoryError):
            raise
        except Exception as error:
            _log.exception("the compiler failed")
            raise _our_fault(f"{type(error).__name__}: {error}") from error

    def _made(self, spec: Spec, key: bytes, engine: Engine) -> CompiledGrammar:
        kept = None if self._disk is None else self._disk.get(key)
        if kept is not None:
            return back_end(kept, engine)
        grammar = self._from_worker(spec)
        if self._disk is not None:
            self._disk.put(key, grammar)
        return back_end(grammar, engine)

    def _from_worker(self, spec: Spec) -> FrontEnd:
        worker = self._idle.get()
        try:
            return worker.run(spec, self.vocabulary.special)
        except _PassedLimit as passed:
            self._num_kills += 1
            raise _over(passed.limit, passed.allowed, "more") from None
        finally:
            self._idle.put(worker)


def _not_started(error: Exception) -> EngineFailed:
    return EngineFailed(
        f"the grammar compiler's worker process did not start ({type(error).__name__}). A script that compiles under "
        'limits needs the usual `if __name__ == "__main__":` guard; the log has the details.'
    )


def _our_fault(what: str) -> EngineFailed:
    """Nobody's grammar should do this: a value for its request alone."""
    failed = EngineFailed(
        f"the grammar compiler failed on this schema or grammar ({what[:300]}). That is a fault of Ramet's, not of the "
        "request; the log has the details, and other requests are not affected."
    )
    failed.at = "#"
    return failed


def _over(limit: str, expected: str, got: str) -> GrammarRefused:
    return GrammarRefused(
        expected=f"a grammar within the limit on {limit} ({expected})",
        got=got,
        at="#",
        hint="Make the schema or grammar smaller or simpler.",
        code="grammar_too_complex",
    )


# The parent's side ----------------------------------------------------------------------------------------------------


class _PassedLimit(Exception):
    def __init__(self, limit: str, allowed: str) -> None:
        super().__init__(limit)
        self.limit, self.allowed = limit, allowed


class _Worker:
    """One process, spawned at first use and again after each kill."""

    def __init__(self, limits: CompileLimits) -> None:
        self.limits = limits
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, where it is up."""
        return None if self._process is None else self._process.pid

    def run(self, spec: Spec, special: dict[str, int]) -> FrontEnd:
        """The front end's result. Raises what it raised, or _PassedLimit once the process is gone."""
        pipe = self._started()
        with contextlib.suppress(BrokenPipeError):  # a worker that died idle: seen below
            pipe.send_bytes(pickle.dumps((msgspec.json.encode(spec), special)))
        deadline_s = time.monotonic() + self.limits.wall_s
        try:
            if not pipe.poll(max(0.0, deadline_s - time.monotonic())):
                self.close()
                raise _PassedLimit("wall time", f"{self.limits.wall_s:g} s")
            answer = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._post_mortem() from None
        if isinstance(answer, _Refusal):
            if answer.limit:
                self.close()
                raise _PassedLimit(answer.limit, f"{self.limits.memory_bytes >> 20} MiB")
            raise answer.error()
        assert isinstance(answer, FrontEnd), "a worker answers with a grammar or a refusal"
        return answer

    def close(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def _started(self) -> Connection:
        if self._pipe is None or self._process is None or not self._process.is_alive():
            self.close()
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            arguments = (theirs, self.limits.cpu_s, self.limits.memory_bytes)
            self._process = context.Process(target=_serve, args=arguments, daemon=True, name="ramet-compile")
            try:
                self._process.start()
                theirs.close()
                if self._pipe.poll(60.0):
                    self._pipe.recv_bytes()  # it is up: importing does not count as compiling
            except (EOFError, OSError, RuntimeError) as error:
                self._process, self._pipe = None, None
                raise _not_started(error) from error
        return self._pipe

    def _post_mortem(self) -> _PassedLimit:
        """Why the process is gone."""
        process = self._process
        if process is not None:
            process.join(5.0)
        code = None if process is None else process.exitcode
        self.close()
        if code == -signal.SIGXCPU:
            return _PassedLimit("CPU time", f"{self.limits.cpu_s} s")
        return _PassedLimit("memory", f"{self.limits.memory_bytes >> 20} MiB")


# The worker's side ----------------------------------------------------------------------------------------------------


class _Refusal(msgspec.Struct, frozen=True):
    """An error as plain text, since exceptions with keyword arguments do not pickle."""

    kind: str
    message: str
    expected: str = ""
    got: str = ""
    at: str = ""
    hint: str = ""
    code: str = ""
    limit: str = ""

    def error(self) -> RametError:
        """The error again."""
        if self.kind == "GrammarRefused":
            return GrammarRefused(
                expected=self.expected, got=Verbatim(self.got), at=self.at, hint=self.hint, code=self.code
            )
        if self.kind == "NotBuilt":
            return NotBuilt(self.message.split(" is not built yet.")[0], hint=self.hint)
        _log.error("the grammar compiler's worker failed:\n%s", self.hint)
        return _our_fault(f"{self.kind}: {self.message}")


def _serve(pipe: Connection, cpu_s: int, memory_bytes: int) -> None:
    """Answer jobs until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this process ends
    pipe.send_bytes(b"up")
    while True:
        try:
            job = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        pipe.send_bytes(_answer(job, cpu_s, memory_bytes))


def _answer(job: bytes, cpu_s: int, memory_bytes: int) -> bytes:
    """The result, or why there is none, pickled. A result that is too deep or large for that is refused as well."""
    data, special = pickle.loads(job)
    try:
        _limit(cpu_s, memory_bytes)
        return pickle.dumps(_compiled(msgspec.json.decode(data, type=Spec), special))
    except MemoryError:
        refusal = _Refusal("MemoryError", "", limit="memory")
    except RecursionError:
        refusal = _Refusal("GrammarRefused", "", "a grammar of ordinary nesting", "too deep a nesting", "#", "",
                           "grammar_too_complex")  # fmt: skip
    except GrammarRefused as error:
        place = (error.expected, error.got, error.at or "", error.hint, error.code)
        refusal = _Refusal("GrammarRefused", str(error), *place)
    except NotBuilt as error:
        refusal = _Refusal("NotBuilt", str(error))
    except Exception as error:
        refusal = _Refusal(type(error).__name__, str(error), hint=traceback.format_exc()[-4000:])
    finally:
        _limit(None, None)
    return pickle.dumps(refusal)


def _compiled(spec: Spec, special: dict[str, int]) -> FrontEnd:
    """What `front_end` makes, once it is known that lowering it goes well too."""
    grammar = front_end(spec)
    for part in grammar.items if isinstance(grammar, Parts) else (grammar,):
        if isinstance(part, ir.Grammar):
            machine = Machine()
            machine.make(machine.start_of(lower(part, machine.space, special)))
    return grammar


def _limit(cpu_s: int | None, memory_bytes: int | None) -> None:
    """Limit this process from where it stands now; None lifts the limit."""
    _, hard_cpu = resource.getrlimit(resource.RLIMIT_CPU)
    used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (hard_cpu if cpu_s is None else int(used_s) + cpu_s + 1, hard_cpu))
    _, hard_memory = resource.getrlimit(resource.RLIMIT_AS)
    size = hard_memory if memory_bytes is None else _address_space() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (size, hard_memory))


def _address_space() -> int:
    """Bytes of address space in use; generous where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 4 << 30
