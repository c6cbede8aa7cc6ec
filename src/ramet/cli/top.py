"""`ramet top`: a running server at a glance: what runs and waits, memory, cache, rates, and the last requests."""

import time
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from ramet.cli.server_client import get, get_json


class Sample(NamedTuple):
    """One look at a server."""

    at: float
    figures: Mapping[str, float]
    """Metric name -> value; of those with labels, `name{label}`."""
    requests: list[dict[str, Any]]


def main(
    base: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    every: Annotated[float, typer.Option(help="Seconds between looks.", min=0.1)] = 1.0,
    rows: Annotated[int, typer.Option(help="Requests shown.", min=0)] = 15,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
) -> None:
    """Watch a running server."""
    console = Console()
    before = look(base, rows)
    if once:
        console.print(frame(before, None))
        return
    try:
        with Live(frame(before, None), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                now = look(base, rows)
                live.update(frame(now, before), refresh=True)
                before = now
    except KeyboardInterrupt:
        return


def look(base: str, rows: int) -> Sample:
    text = get(base, "/metrics").decode()
    figures = {
        sample.name + (f"{{{','.join(sample.labels.values())}}}" if sample.labels else ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    requests = get_json(base, f"/v1/requests?limit={rows}")["data"] if rows else []
    return Sample(time.monotonic(), figures, requests)


def frame(now: Sample, before: Sample | None) -> RenderableType:
    """What is shown: totals as shares, counters as rates since the look before."""
    return Group(_summary(now, before), _requests(now.requests))


def _summary(now: Sample, before: Sample | None) -> Table:
    figures = now.figures
    prompt, cached = figures.get("ramet_prompt_tokens_total", 0.0), figures.get("ramet_cached_tokens_total", 0.0)
    cells = {
        "running": f"{figures.get('ramet_requests_running', 0):.0f}",
        "waiting": f"{figures.get('ramet_prefill_queue_length', 0):.0f}",
        "oldest": f"{figures.get('ramet_oldest_waiting_seconds', 0):.1f} s",
        "programs": f"{figures.get('ramet_programs', 0):.0f}",
        "KV in use": f"{figures.get('ramet_kv_utilisation', 0):.0%}",
        "prompt cached": f"{cached / prompt:.0%}" if prompt else "-",
        "evicted": f"{figures.get('ramet_evicted_tokens_total', 0):,.0f}",
        "prompt tok/s": _rate("ramet_prompt_tokens_total", now, before),
        "new tok/s": _rate("ramet_generated_tokens_total", now, before),
    }
    table = Table(box=None, pad_edge=False)
    for name in cells:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(*cells.values())
    return table


def _rate(name: str, now: Sample, before: Sample | None) -> str:
    if before is None or now.at <= before.at:
        return "-"
    return f"{(now.figures.get(name, 0) - before.figures.get(name, 0)) / (now.at - before.at):,.0f}"


def _requests(requests: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, title="last requests", title_justify="left")
    for name in ("id", "client", "program"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=28)
    for name in ("prompt", "cached", "new", "queue ms", "prefill ms", "decode ms", "finish", "miss"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in requests:
        miss = item["miss"]
        table.add_row(
            item["id"],
            item["client"],
            item["program"] or "-",
            *(f"{item[name]:.0f}" for name in ("prompt_tokens", "cached_tokens", "new_tokens")),
            *(f"{item[name]:.0f}" for name in ("queue_ms", "prefill_ms", "decode_ms")),
            item["finish"],
            f"{miss['cause']} @{miss['at_token']}" if miss else "-",
        )
    return table
