"""The figures that dashboards and routers look for, under our names and, where asked, under vLLM's."""

import pytest

from ramet.runtime.telemetry.prometheus import Metrics
from ramet.runtime.types import EngineStatistics, Finished, Timings, Usage

OURS = [
    "ramet_prefill_queue_length", "ramet_decode_queue_length", "ramet_cache_hit_rate", "ramet_evicted_tokens_total",
    "ramet_kv_utilisation", "ramet_time_to_first_token_seconds_bucket", "ramet_time_per_output_token_seconds_bucket",
    "ramet_oldest_waiting_seconds", "ramet_preemptions_total", "ramet_front_tasks",
]  # fmt: skip
VLLM = [
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
    "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total", "num_preemptions_total",
    "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket", "request_queue_time_seconds_bucket",
    "request_prefill_time_seconds_bucket", "request_decode_time_seconds_bucket", "request_success_total",
]  # fmt: skip


def rendered(*, vllm_names: bool) -> dict[str, float]:
    """Each sample of a server that answered once."""
    metrics = Metrics(vllm_names=vllm_names)
    times = Timings(queue_s=0.25, prefill_s=0.5, decode_s=3.0, time_to_first_token_s=0.75)
    usage = Usage(prompt_tokens=9, cached_tokens=4, completion_tokens=4)
    metrics.observe([Finished(reason="stop", usage=usage, timings=times, miss={"cause": "never_seen"})], "stop")
    text = metrics.render(EngineStatistics(prompt_tokens_total=9, cached_tokens_total=4)).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def bare(samples: dict[str, float]) -> set[str]:
    return {name.split("{")[0] for name in samples}


@pytest.mark.parametrize("vllm_names", [False, True])
def test_every_figure_has_its_name(vllm_names: bool) -> None:
    samples = rendered(vllm_names=vllm_names)
    assert set(OURS) <= bare(samples)
    aliases = {name for name in bare(samples) if name.startswith("vllm:")}
    assert {f"vllm:{name}" for name in VLLM} <= aliases if vllm_names else not aliases


def test_aliases_say_what_ours_say() -> None:
    samples = rendered(vllm_names=True)
    assert samples["vllm:request_queue_time_seconds_sum"] == samples["ramet_queue_seconds_sum"] == 0.25
    assert samples["vllm:inter_token_latency_seconds_sum"] == 1.0
    assert samples["vllm:prefix_cache_queries_total"] == 9 and samples["vllm:prefix_cache_hits_total"] == 4
    assert samples['vllm:request_success_total{finished_reason="stop"}'] == 1
    assert samples['ramet_divergence_total{reason="never_seen"}'] == 1
    assert samples["ramet_cache_hit_rate"] == pytest.approx(4 / 9)
