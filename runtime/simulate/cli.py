"""What `ramet sim` calls: replay a trace under a policy, or measure the figures of the report. Returns plain dicts."""

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ramet.runtime.errors import BadRequest
from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.figure import Check, Figure
from ramet.runtime.simulate.figures.registry import FIGURES, QUICK
from ramet.runtime.simulate.policies import MachineConfig, build_runner
from ramet.runtime.simulate.runner import Replay
from ramet.runtime.simulate.sources import live_sessions, open_sessions, redrawn
from ramet.runtime.simulate.summary import summary
from ramet.runtime.simulate.workload import Session, resent

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
    without: Collection[str] = (),
    on_replay: Callable[[Replay], None] | None = None,
) -> dict[str, object]:
    """Replay one trace file: at its own times, or, where it has none, as a closed loop of `num_live` sessions for
    `until_s` simulated seconds. Every setting is in the result. `without`: parts of ours to leave out."""
    cost, left_out = named_cost(gpu, model), frozenset(without)
    config = MachineConfig(cost=cost, pool_tokens=pool_tokens or cost.pool_tokens, page_size=page_size)
    runner = build_runner(policy, config, left_out)
    change: Callable[[Session], Session] = resent if "splice" in left_out else lambda session: session
    looping = live_sessions(trace, seed=seed, redraw_gaps=redraw_gaps)
    if looping is not None:
        replay = runner.closed_loop(map(change, looping), num_live, until_s)
    else:
        sessions = open_sessions(trace, limit=limit)
        replay = runner.open_loop([*map(change, redrawn(sessions, seed) if redraw_gaps else sessions)])
    if on_replay is not None:
        on_replay(replay)
    settings = {
        "trace": trace.name,
        "policy": policy,
        "without": sorted(left_out),
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
    names: Sequence[str] = (),
    *,
    traces: Path = TRACES,
    quick: bool = False,
    on_figure: Callable[[Figure], None] | None = None,
) -> dict[str, object]:
    """Measure figures by name (all without any); `on_figure` hears of each as it is done. `quick`: fewer seeds, loads
    and sessions, for a look; bars are those of the whole figures."""
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise BadRequest(expected=f"figures of {', '.join(FIGURES)}", got=", ".join(unknown), at="bars")
    found = []
    for name in names or FIGURES:
        began = time.perf_counter()
        figure = (QUICK.get(name, FIGURES[name]) if quick else FIGURES[name])(traces)
        if on_figure is not None:
            on_figure(figure)
        found.append({**as_dict(figure), "wall_s": round(time.perf_counter() - began, 1)})
    return {"quick": quick, "figures": found, "all_hold": all(figure["holds"] for figure in found)}


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
