"""OpenTelemetry spans of served requests, with the names of its GenAI conventions. Off unless asked for.

A request's span is written when it has ended, with the times it had: nothing waits for a tracer while tokens flow.
Message content is never recorded. Needs the extra `ramet[otel]`; where spans go is OpenTelemetry's own configuration
(OTEL_EXPORTER_OTLP_ENDPOINT and its kin).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ramet.runtime.errors import NotBuilt
from ramet.runtime.types import Finished, GenerateSpec, Usage


class Served(NamedTuple):
    """What a span says of a request."""

    request_id: str
    conversation_id: str | None
    model: str
    spec: GenerateSpec
    num_prompt: int
    began_ns: int
    """Unix nanoseconds."""
    ended_ns: int
    outcome: str
    """A finish reason, `aborted`, or `error CODE`."""


class Traces:
    """Writes one span a request, with children for queue, prefill and decode."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    @classmethod
    def from_environment(cls) -> "Traces":
        """Export over OTLP, as OpenTelemetry's environment variables say."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise NotBuilt("tracing without OpenTelemetry", hint="Install it: pip install 'ramet[otel]'.") from None
        provider = TracerProvider(resource=Resource.create({"service.name": "ramet"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider.get_tracer("ramet"))

    def record(self, served: Served, finished: Sequence[Finished], usage: Usage, headers: Mapping[str, str]) -> None:
        """Write the span of a request that has ended; with `traceparent` among the headers, under the caller's."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(
            {name: headers[name] for name in _PROPAGATED if name in headers}
        )
        span = self._tracer.start_span(
            f"chat {served.model}",
            context=parent,
            kind=trace.SpanKind.SERVER,
            start_time=served.began_ns,
            attributes=_attributes(served, finished, usage),
        )
        if served.outcome.startswith("error"):
            span.set_status(trace.StatusCode.ERROR, served.outcome)
        self._phases(span, served.began_ns, finished)
        span.end(end_time=served.ended_ns)

    def _phases(self, parent: Any, began_ns: int, finished: Sequence[Finished]) -> None:
        from opentelemetry import trace

        if not finished:
            return
        times, start = finished[0].timings, began_ns
        for name, seconds in (("queue", times.queue_s), ("prefill", times.prefill_s), ("decode", times.decode_s)):
            end = start + int(seconds * 1e9)
            self._tracer.start_span(name, context=trace.set_span_in_context(parent), start_time=start).end(end_time=end)
            start = end


_PROPAGATED = ("traceparent", "tracestate")


def _attributes(served: Served, finished: Sequence[Finished], usage: Usage) -> dict[str, Any]:
    sampling = served.spec.sampling
    found: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "ramet",
        "gen_ai.request.model": served.model,
        "gen_ai.request.max_tokens": served.spec.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.response.id": served.request_id,
        "gen_ai.response.model": served.model,
        "gen_ai.response.finish_reasons": [item.reason for item in finished],
        "gen_ai.usage.input_tokens": served.num_prompt,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.conversation.id": served.conversation_id,
        "ramet.usage.cached_tokens": usage.cached_tokens,
        "ramet.outcome": served.outcome,
    }
    return {name: value for name, value in found.items() if value is not None}
