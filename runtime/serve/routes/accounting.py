"""What a request cost, once it has ended: one log line, the metrics, the record that `ramet explain` reads, a span.

Counts it in and out too: what is in flight is bounded, and waited for when the server stops.
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from starlette.requests import Request

from ramet.runtime.errors import RametError
from ramet.runtime.serve.records import Record, record_of
from ramet.runtime.serve.state import ServerState
from ramet.runtime.serve.usage import total
from ramet.runtime.telemetry.traces import Served
from ramet.runtime.types import Finished, GenerateSpec

log = logging.getLogger("ramet.request")


class Entry(NamedTuple):
    """A request as it begins."""

    request_id: str
    program_id: str | None
    prompt: Sequence[int]
    """Its ids; empty where the engine alone knows them."""
    spec: GenerateSpec


@contextlib.contextmanager
def accounted(http: Request, state: ServerState, entry: Entry) -> Iterator[list[Finished]]:
    """The block serves the request, and puts the last event of each choice into the list. Busy where too many are
    being served."""
    context = state.ready_context()
    finished: list[Finished] = []
    began_ns, outcome = time.time_ns(), "aborted"
    context.enter()
    try:
        yield finished
        outcome = finished[0].reason if finished else "empty"
    except RametError as error:
        outcome = f"error {error.code}"
        raise
    finally:
        context.leave()
        ended_ns = time.time_ns()
        state.metrics.observe(finished, outcome)
        record = _record(http, entry, finished, outcome, began_ns, ended_ns)
        state.records.add(http.scope.get("state", {}).get("key", ""), record, entry.prompt)
        _log_line(record)
        if state.traces is not None:
            served = Served(
                entry.request_id, entry.program_id, context.served_name, entry.spec, record.prompt_tokens,
                began_ns, ended_ns, outcome,
            )  # fmt: skip
            state.traces.record(served, finished, total(finished), http.headers)


def _record(
    http: Request, entry: Entry, finished: Sequence[Finished], outcome: str, began_ns: int, ended_ns: int
) -> Record:
    return record_of(
        entry.request_id,
        ended=ended_ns / 1e9,
        path=http.url.path,
        client=(http.headers.get("user-agent") or "-").split(" ")[0][:40],
        program=entry.program_id,
        num_prompt=len(entry.prompt) or (finished[0].usage.prompt_tokens if finished else 0),
        finished=finished,
        outcome=outcome,
        took_s=(ended_ns - began_ns) / 1e9,
        miss=finished[0].miss if finished else None,
    )


def _log_line(record: Record) -> None:
    log.info(
        "id=%s client=%s program=%s prompt=%d cached=%d new=%d queue_ms=%.0f prefill_ms=%.0f decode_ms=%.0f "
        "total_ms=%.0f finish=%s",
        record.id,
        record.client,
        record.program,
        record.prompt_tokens,
        record.cached_tokens,
        record.new_tokens,
        record.queue_ms,
        record.prefill_ms,
        record.decode_ms,
        record.total_ms,
        record.finish,
    )
