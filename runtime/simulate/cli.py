"""What `ramet sim` calls: replay a trace under a policy, or measure the figures of the report. Returns plain dicts."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ramet.runtime.errors import BadRequest
from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.figure import Check, Figure
from ramet.runtime.simulate.figures.registry import FIGURES
from ramet.runtime.simulate.policies import MachineConfig, build_runner
from ramet.runtime.simulate.sources import live_sessions, open_sessions, redrawn
from ramet.runtime.simulate.summary import summary

TRACES = Path("../shared/data/traces")
"""Where the public traces lie, from the repository's root."""


def run(
    trace: Path,
    policy: str = "gittins",
    gpu: str = "h200",
    model: str = "llama-3.1-8b",
    *,
    pool_tokens: int | None = None,
    page_size: int = 64,
    limit: int | None = None,
    num_live: int = 48,
    until_s: float = 1200.0,
    redraw_gaps: bool = True,
    seed: int = 0,
) -> dict[str, object]:
    """Replay one trace file: at its own times, or, where it has none, as a closed loop of `num_live` sessions for
    `until_s` simulated seconds. Every setting is in the result."""
    cost = named_cost(gpu, model)
    config = MachineConfig(cost=cost, pool_tokens=pool_tokens or cost.pool_tokens, page_size=page_size)
    runner = build_runner(policy, config)
    looping = live_sessions(trace, seed=seed, redraw_gaps=redraw_gaps)
    if looping is not None:
        replay = runner.closed_loop(looping, num_live, until_s)
    else:
        sessions = open_sessions(trace, limit=limit)
        replay = runner.open_loop(redrawn(sessions, seed) if redraw_gaps else sessions)
    settings = {
        "trace": trace.name,
        "policy": policy,
        "gpu": gpu,
        "model": model,
        "pool_tokens": config.pool_tokens,
        "page_size": page_size,
        "loop": "open" if looping is None else f"closed, {num_live} live, {until_s:g} s",
        "gaps": "redrawn" if redraw_gaps else "recorded",
        "seed": seed,
    }
    return {"settings": settings, "figures": summary(replay)}


def bars(
    names: Sequence[str] = (), *, traces: Path = TRACES, on_figure: Callable[[Figure], None] | None = None
) -> dict[str, object]:
    """Measure figures by name (all without any); `on_figure` hears of each as it is done."""
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise BadRequest(expected=f"figures of {', '.join(FIGURES)}", got=", ".join(unknown), at="bars")
    found = []
    for name in names or FIGURES:
        figure = FIGURES[name](traces)
        if on_figure is not None:
            on_figure(figure)
        found.append(as_dict(figure))
    return {"figures": found, "all_hold": all(figure["holds"] for figure in found)}


def as_dict(figure: Figure) -> dict[str, object]:
    """For JSON: infinite ends of a range become null."""
    return {
        "name": figure.name,
        "title": figure.title,
        "holds": figure.holds,
        "values": dict(figure.values),
        "bars": [
            {
                "name": check.name,
                "value": check.value,
                "low": check.low if check.low > float("-inf") else None,
                "high": check.high if check.high < float("inf") else None,
                "holds": check.holds,
            }
            for check in figure.checks
        ],
        "notes": list(figure.notes),
    }


def as_text(figure: Figure) -> str:
    """For a terminal: the bars, and what was measured besides."""
    lines = [f"{figure.name}  {figure.title}  [{'holds' if figure.holds else 'does not hold'}]"]
    checked = {check.name for check in figure.checks}
    lines += [
        f"  {'ok ' if check.holds else 'NO '} {check.name:<44} {check.value:>12.4g}  {_range(check)}"
        for check in figure.checks
    ]
    lines += [f"      {name:<44} {value:>12.4g}" for name, value in figure.values.items() if name not in checked]
    return "\n".join([*lines, *(f"      ({note})" for note in figure.notes)])


def _range(check: Check) -> str:
    low, high = check.low, check.high
    if low == float("-inf"):
        return f"<= {high:.4g}"
    return f">= {low:.4g}" if high == float("inf") else f"in [{low:.5g}, {high:.5g}]"
