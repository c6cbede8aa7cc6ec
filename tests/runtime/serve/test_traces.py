"""A request's span: its names, its caller, its phases, and nothing of what was said."""

import sys
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ramet.runtime.telemetry.traces import Traces

sys.path.insert(0, str(Path(__file__).parent))
from scripted import served

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_served_request_is_one_span_under_its_caller() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with served("secret words") as http:
        http._transport.app.state.ramet.traces = Traces(provider.get_tracer("test"))  # type: ignore[attr-defined]
        body = {"messages": [{"role": "user", "content": "private question"}], "max_tokens": 50}
        await http.post("/v1/chat/completions", json=body, headers={"traceparent": CALLER})
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"chat scripted", "queue", "prefill", "decode"}
    chat = spans["chat scripted"]
    assert chat.parent is not None and format(chat.parent.span_id, "016x") == "b7ad6b7169203331"
    assert chat.attributes is not None
    assert chat.attributes["gen_ai.usage.output_tokens"] == 13
    assert chat.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert not any("secret" in str(value) or "private" in str(value) for value in chat.attributes.values())
