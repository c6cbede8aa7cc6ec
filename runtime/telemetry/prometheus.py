"""Metrics in Prometheus' text form, from snapshots and finished requests. Reads only; nothing below calls it.

Counters that the engine keeps are exported from its snapshot as they are; what only the front knows (outcomes,
latencies as the client saw them) is counted here. Names begin with `ramet_`; `vllm:` names can be exported beside them.
"""

import asyncio
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ramet.runtime.types import EngineStatistics, Finished

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

_GAUGES: tuple[tuple[str, str, str, str], ...] = (
    ("num_running", "ramet_requests_running", "vllm:num_requests_running", "Sequences in the running batch."),
    (
        "num_waiting_prefill",
        "ramet_prefill_queue_length",
        "vllm:num_requests_waiting",
        "Sequences that wait for prefill.",
    ),
    ("num_decoding", "ramet_decode_queue_length", "", "Sequences that decode."),
    ("num_programs", "ramet_programs", "", "Programs that are open."),
    ("num_branches", "ramet_branches", "", "Branches that are open."),
    ("oldest_waiting_s", "ramet_oldest_waiting_seconds", "", "Age of the sequence that has waited longest."),
    ("tree_nodes", "ramet_tree_nodes", "", "Nodes of the radix tree."),
)
_COUNTERS: tuple[tuple[str, str, str, str], ...] = (
    ("prompt_tokens_total", "ramet_prompt_tokens", "vllm:prompt_tokens", "Prompt tokens of admitted requests."),
    (
        "prompt_tokens_total",
        "",
        "vllm:prefix_cache_queries",
        "Prompt tokens that were looked for in the cache.",
    ),
    ("cached_tokens_total", "ramet_cached_tokens", "vllm:prefix_cache_hits", "Prompt tokens found in the cache."),
    ("computed_tokens_total", "ramet_computed_tokens", "", "Tokens that went through the model."),
    ("generated_tokens_total", "ramet_generated_tokens", "vllm:generation_tokens", "Tokens generated."),
    ("evicted_tokens_total", "ramet_evicted_tokens", "", "Tokens whose KV was evicted."),
    (
        "idle_token_seconds_total",
        "ramet_idle_kv_token_seconds",
        "",
        "KV tokens of programs in gaps that nobody else reads, times seconds.",
    ),
    (
        "idle_cost_seconds_total",
        "ramet_idle_kv_cost_seconds",
        "",
        "The same at the price of memory: seconds that others would have saved.",
    ),
    (
        "quota_refused_total",
        "ramet_quota_refused",
        "",
        "Turns refused because their tenant or program was at its limit.",
    ),
    ("recomputed_tokens_total", "ramet_recomputed_tokens", "", "Tokens computed again after eviction or preemption."),
    (
        "preemptions_total",
        "ramet_preemptions",
        "vllm:num_preemptions",
        "Sequences that stepped back for lack of pages.",
    ),
    ("aborted_total", "ramet_aborted", "", "Sequences whose caller went away."),
    ("steps_total", "ramet_steps", "", "Engine steps."),
    ("drafted_tokens_total", "ramet_drafted_tokens", "vllm:spec_decode_num_draft_tokens", "Tokens proposed as drafts."),
    ("accepted_tokens_total", "ramet_accepted_tokens", "vllm:spec_decode_num_accepted_tokens", "Drafts accepted."),
)


_TIMES: dict[str, str] = {
    "ramet_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "ramet_time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
    "ramet_queue_seconds": "vllm:request_queue_time_seconds",
    "ramet_prefill_seconds": "vllm:request_prefill_time_seconds",
    "ramet_decode_seconds": "vllm:request_decode_time_seconds",
}
"""Histograms, and what vLLM calls them."""


class Metrics:
    """One server's metrics, in a registry of their own."""

    def __init__(self, *, vllm_names: bool = False) -> None:
        self._vllm_names = vllm_names
        self._registry = CollectorRegistry()
        registry = self._registry
        self._requests = Counter("ramet_requests", "Requests by how they ended.", ["outcome"], registry=registry)
        self._first = Histogram("ramet_time_to_first_token_seconds", "TTFT.", buckets=_SECONDS, registry=registry)
        self._per_token = Histogram("ramet_time_per_output_token_seconds", "TPOT.", buckets=_SECONDS, registry=registry)
        self._queue = Histogram("ramet_queue_seconds", "Time in the queue.", buckets=_SECONDS, registry=registry)
        self._prefill = Histogram("ramet_prefill_seconds", "Time of prefill.", buckets=_SECONDS, registry=registry)
        self._decode = Histogram("ramet_decode_seconds", "Time of decode.", buckets=_SECONDS, registry=registry)
        self._misses = Counter(
            "ramet_divergence", "Requests by why they missed the cache.", ["reason"], registry=registry
        )
        tasks = Gauge("ramet_front_tasks", "Coroutines that the front is running.", registry=registry)
        tasks.set_function(_num_tasks)
        if vllm_names:
            registry.register(_Renamed([self._first, self._per_token, self._queue, self._prefill, self._decode]))
            name, text = "vllm:request_success", "Requests that ended well."
            self._successes = Counter(name, text, ["finished_reason"], registry=registry)

    def observe(self, finished: list[Finished], outcome: str) -> None:
        """Count one request: its choices as they finished, and how it ended."""
        self._requests.labels(outcome=outcome).inc()
        if finished and finished[0].miss is not None:
            self._misses.labels(reason=str(finished[0].miss["cause"])).inc()
        for item in finished:
            if self._vllm_names:
                self._successes.labels(finished_reason=item.reason).inc()
            times, num_tokens = item.timings, item.usage.completion_tokens
            self._queue.observe(times.queue_s)
            self._prefill.observe(times.prefill_s)
            self._decode.observe(times.decode_s)
            if times.time_to_first_token_s is not None:
                self._first.observe(times.time_to_first_token_s)
            if num_tokens > 1:
                self._per_token.observe(times.decode_s / (num_tokens - 1))

    def render(self, statistics: EngineStatistics | None) -> bytes:
        """The text that /metrics answers with."""
        text: bytes = generate_latest(self._registry)
        if statistics is None:
            return text
        snapshot = CollectorRegistry()
        snapshot.register(_Snapshot(statistics, vllm_names=self._vllm_names))
        return text + bytes(generate_latest(snapshot))


def _num_tasks() -> float:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # asked outside the front's loop
        return 0.0


class _Renamed(Collector):
    """Histograms once more, under vLLM's names."""

    def __init__(self, histograms: Sequence[Histogram]) -> None:
        self._histograms = histograms

    def collect(self) -> Iterator[Metric]:
        for family in (family for histogram in self._histograms for family in histogram.collect()):
            alias = Metric(_TIMES[family.name], family.documentation, "histogram")
            for sample in family.samples:
                alias.samples.append(sample._replace(name=sample.name.replace(family.name, alias.name, 1)))
            yield alias


class _Snapshot(Collector):
    """The engine's numbers at one moment."""

    def __init__(self, statistics: EngineStatistics, *, vllm_names: bool) -> None:
        self._statistics, self._vllm_names = statistics, vllm_names

    def collect(self) -> Iterator[Metric]:
        for field, name, alias, text in _GAUGES:
            yield from self._named(GaugeMetricFamily, name, alias, text, getattr(self._statistics, field))
        for field, name, alias, text in _COUNTERS:
            yield from self._named(CounterMetricFamily, name, alias, text, getattr(self._statistics, field))
        yield self._tree_tokens()
        yield self._cached_tokens_by_tier()
        yield self._disk_tokens()
        yield self._grammar_masks()
        yield from self._named(GaugeMetricFamily, *self._use())
        yield from self._named(GaugeMetricFamily, *self._hit_rate())

    def _named(
        self, kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, alias: str, text: str, value: float
    ) -> Iterator[Metric]:
        for given in (name, alias if self._vllm_names else ""):
            if given:
                yield kind(given, text, value=value)

    def _tree_tokens(self) -> Metric:
        s = self._statistics
        family = GaugeMetricFamily("ramet_kv_tokens", "Tokens of KV memory by state.", labels=["state"])
        for state, pages in (("free", s.free_pages), ("evictable", s.evictable_pages), ("leased", s.leased_pages)):
            family.add_metric([state], pages * s.page_size)
        return family

    def _cached_tokens_by_tier(self) -> Metric:
        s, name = self._statistics, "ramet_cached_tokens_by_tier"
        family = CounterMetricFamily(name, "Prompt tokens found in the cache, by where they lay.", labels=["tier"])
        from_host, from_disk = s.host_hit_tokens_total, s.disk_hit_tokens_total
        family.add_metric(["device"], max(0, s.cached_tokens_total - from_host - from_disk))
        family.add_metric(["host"], from_host)
        family.add_metric(["disk"], from_disk)
        return family

    def _grammar_masks(self) -> Metric:
        s = self._statistics
        family = CounterMetricFamily(
            "ramet_grammar_masks", "Places drawn under a grammar, by who made the mask.", labels=["backend"]
        )
        family.add_metric(["device"], s.grammar_device_masks_total)
        family.add_metric(["host"], s.grammar_host_masks_total)
        return family

    def _disk_tokens(self) -> Metric:
        s = self._statistics
        family = CounterMetricFamily("ramet_disk_tokens", "Tokens of KV in the disk tier's traffic.", labels=["what"])
        family.add_metric(["written"], s.disk_written_tokens_total)
        family.add_metric(["read"], s.disk_hit_tokens_total)
        family.add_metric(["unreadable"], s.disk_missed_tokens_total)
        family.add_metric(["dropped"], s.disk_dropped_tokens_total)
        return family

    def _use(self) -> tuple[str, str, str, float]:
        s = self._statistics
        used = s.leased_pages / s.total_pages if s.total_pages else 0.0
        return (
            "ramet_kv_utilisation",
            "vllm:kv_cache_usage_perc",
            "Share of KV memory that running sequences hold.",
            used,
        )

    def _hit_rate(self) -> tuple[str, str, str, float]:
        s = self._statistics
        rate = s.cached_tokens_total / s.prompt_tokens_total if s.prompt_tokens_total else 0.0
        return "ramet_cache_hit_rate", "", "Cached over all prompt tokens, since the start.", rate
