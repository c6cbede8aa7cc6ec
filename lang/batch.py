"""Many runs of one program: some at a time, each with its own error, and a file to go on from.

Knows threads and the file; what a run is, the program knows. The file has one JSON line per item that ended well,
written when it ends; items that failed are not in it, so the next call tries them again.
"""

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ramet.lang.record import Record, recall, record_of
from ramet.lang.run import Run
from ramet.lang.state import State
from ramet.runtime.errors import BadRequest, Cancelled

if TYPE_CHECKING:
    from ramet.lang.program import Prepared, Program

_AUTO_THREADS = 32
"""A thread only waits; how much runs at once the engine decides."""


def run_batch(
    program: "Program[..., Any]",
    batch: Sequence[Any],
    num_threads: "int | str",
    progress_bar: bool,
    generator_style: bool,
    resume: str | None,
    options: Mapping[str, Any],
) -> list[State] | Iterator[State]:
    """See Program.run_batch."""
    calls = [_prepare(program, index, item, options) for index, item in enumerate(batch)]
    threads = _num_threads(num_threads, len(calls))
    job = _Batch(program, calls, [_key(program, item) for item in batch], resume)
    states = job.run(threads, _Progress(len(calls)) if progress_bar else None)
    return states if generator_style else list(states)


def _prepare(program: "Program[..., Any]", index: int, item: Any, options: Mapping[str, Any]) -> "Prepared":
    try:
        if isinstance(item, Mapping):
            return program.prepare((), {**options, **item})
        if isinstance(item, list | tuple):
            return program.prepare(tuple(item), options)
    except BadRequest as error:
        error.add_note(f"  in batch[{index}]")
        raise
    raise BadRequest(
        expected="a mapping or a tuple of arguments", got=item, at=f"batch[{index}]", hint="Use {'name': value}."
    )


def _num_threads(wanted: "int | str", num_items: int) -> int:
    if wanted == "auto":
        return max(1, min(_AUTO_THREADS, num_items))
    if not isinstance(wanted, int) or wanted < 1:
        raise BadRequest(expected='1 or more, or "auto"', got=wanted, at="num_threads")
    return max(1, min(wanted, num_items))


def _key(program: "Program[..., Any]", item: Any) -> str:
    """Says whether a line of the file is about this item: program and arguments."""
    text = json.dumps([program.name, program.bound, item], sort_keys=True, default=repr, ensure_ascii=False)
    return hashlib.blake2s(text.encode(), digest_size=12).hexdigest()


class _Batch:
    """One call of run_batch."""

    def __init__(
        self, program: "Program[..., Any]", calls: "list[Prepared]", keys: list[str], resume: str | None
    ) -> None:
        self.program, self.calls, self.keys = program, calls, keys
        self.path = Path(resume) if resume is not None else None
        self.done = _read(self.path) if self.path is not None else {}
        self.active: set[Run] = set()
        self.lock = threading.Lock()
        self.stopped = False

    def run(self, threads: int, progress: "_Progress | None") -> Iterator[State]:
        pool = ThreadPoolExecutor(threads, thread_name_prefix=f"ramet-{self.program.name}")
        futures = [pool.submit(copy_context().run, self._item, index) for index in range(len(self.calls))]
        if progress is not None:
            for future in futures:
                future.add_done_callback(progress.count)
        return self._states(pool, futures, progress)

    def _states(
        self, pool: ThreadPoolExecutor, futures: "list[Future[State]]", progress: "_Progress | None"
    ) -> Iterator[State]:
        try:
            for future in futures:
                yield future.result()
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if progress is not None:
                progress.end()

    def _stop(self, error: BaseException) -> None:
        with self.lock:
            self.stopped = True
            active = list(self.active)
        for run in active:
            run.end(error)

    def _item(self, index: int) -> State:
        identity = f"{index}:{self.keys[index]}"
        if (record := self.done.get(identity)) is not None:
            return recall(self.program.name, record)
        state = self._run_item(self.calls[index])
        if self.path is not None and state.branch.run.error is None:
            self._write(identity, state)
        return state

    def _run_item(self, call: "Prepared") -> State:
        run = Run(call.settings)
        state = State(run.root)
        with self.lock:
            self.active.add(run)
            stopped = self.stopped
        try:
            if stopped:
                raise Cancelled("the batch was stopped")
            self.program.run_body(state, call)
        except Exception as error:
            run.error = run.error or error
        finally:
            with self.lock:
                self.active.discard(run)
        return state

    def _write(self, identity: str, state: State) -> None:
        line = json.dumps({"item": identity, **msgspec.to_builtins(record_of(state))}, ensure_ascii=False)
        assert self.path is not None
        with self.lock, self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path) -> dict[str, Record]:
    """What is done. A torn last line (the machine went down while it was written) counts as not done."""
    done: dict[str, Record] = {}
    if path.exists():
        text = path.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):
            path.write_text(text + "\n", encoding="utf-8")
        for line in text.splitlines():
            try:
                data = json.loads(line)
                done[data.pop("item")] = msgspec.convert(data, Record)
            except (ValueError, KeyError, AttributeError, msgspec.ValidationError):
                continue
    return done


class _Progress:
    """One line on stderr: how many are done, how many failed, how fast."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self.started = self.shown = time.monotonic()
        self.lock = threading.Lock()

    def count(self, future: "Future[State]") -> None:
        with self.lock:
            self.done += 1
            self.failed += bool(future.cancelled() or future.exception() or future.result().branch.run.error)
            now = time.monotonic()
            if now - self.shown > 0.1 or self.done == self.total:
                self.shown = now
                self._show(now)

    def _show(self, now: float) -> None:
        width = 24
        full = width * self.done // max(self.total, 1)
        rate = self.done / max(now - self.started, 1e-6)
        failed = f", {self.failed} failed" if self.failed else ""
        bar = "█" * full + "·" * (width - full)
        sys.stderr.write(f"\r{bar} {self.done}/{self.total}{failed}, {rate:.1f}/s ")
        sys.stderr.flush()

    def end(self) -> None:
        sys.stderr.write("\n")
        sys.stderr.flush()
