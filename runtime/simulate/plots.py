"""Pictures of runs and figures, as PNG or SVG. matplotlib is an optional extra, imported when one is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ramet.runtime.errors import BadRequest, Unavailable
from ramet.runtime.simulate.runner import Replay

if TYPE_CHECKING:
    from ramet.runtime.simulate.figure import Figure

FORMATS = (".png", ".svg")
_PER_WINDOW = 60
"""Windows that a run's turns are counted in."""


def check_plot(path: Path) -> None:
    """Before anything is run: raises BadRequest for a format that is not drawn, Unavailable without
    matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise BadRequest(expected=f"a file that ends in {' or '.join(FORMATS)}", got=str(path), at="--plot")
    if not path.parent.is_dir():
        raise BadRequest(expected="a folder that is there", got=str(path.parent), at="--plot")
    _pyplot()


def plot_runs(runs: Mapping[str, Replay], path: Path) -> None:
    """Of one trace under each policy: completion of its sessions, time to first token, turns and hits over time."""
    plt = _pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), constrained_layout=True)
    for policy, run in runs.items():
        _cumulative(axes[0, 0], policy, [session.ended_s - session.started_s for session in run.sessions])
        _cumulative(axes[0, 1], policy, [turn.first_token_s for turn in run.turns])
        times, turns, hits = _over_time(run)
        axes[1, 0].plot(times, turns, label=policy)
        axes[1, 1].plot(times, hits, label=policy)
    for place, (title, across) in zip(
        ((0, 0), (0, 1), (1, 0), (1, 1)),
        (
            ("share of sessions that completed", "s"),
            ("share of turns with a first token", "s"),
            ("turns a minute", "simulated s"),
            ("hit rate of prompts", "simulated s"),
        ),
        strict=True,
    ):
        axes[place].set_title(title)
        axes[place].set_xlabel(across)
    axes[0, 0].set_xscale("log")
    axes[0, 1].set_xscale("log")
    axes[0, 0].legend()
    _save(figure, path)


def plot_load_curve(figure_found: "Figure", path: Path) -> None:
    """S6: hit rate and turns a minute against the number of live sessions."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for axis, (field, title) in zip(
        axes, (("hit", "hit rate of later turns"), ("turns_per_min", "turns a minute")), strict=True
    ):
        for policy, points in load_points(figure_found.values, field).items():
            loads = sorted(points)
            axis.plot(loads, [points[load] for load in loads], marker="o", label=policy)
        axis.set_title(title)
        axis.set_xlabel("live sessions")
        axis.set_ylim(bottom=0)
    axes[0].legend()
    _save(figure, path)


def load_points(values: Mapping[str, float], field: str) -> dict[str, dict[int, float]]:
    """Policy -> load -> value, of figures named `policy_load_field`."""
    found: dict[str, dict[int, float]] = {}
    for name, value in values.items():
        policy, _, load = name.removesuffix(f"_{field}").rpartition("_")
        if name.endswith(f"_{field}") and load.isdigit():
            found.setdefault(policy, {})[int(load)] = value
    return found


def _cumulative(axis: Any, label: str, values: Sequence[float]) -> None:
    ordered = np.sort(np.array(values, np.float64))
    axis.plot(ordered, np.arange(1, len(ordered) + 1) / max(1, len(ordered)), label=label)


def _over_time(run: Replay) -> tuple[list[float], list[float], list[float]]:
    """Middles of windows, turns a minute and hit rate in each."""
    edges = np.linspace(0.0, max(run.seconds, 1e-9), _PER_WINDOW + 1)
    ends = np.array([turn.ended_s for turn in run.turns])
    counts, _ = np.histogram(ends, edges)
    prompt, _ = np.histogram(ends, edges, weights=np.array([turn.prompt_tokens for turn in run.turns], np.float64))
    cached, _ = np.histogram(ends, edges, weights=np.array([turn.cached_tokens for turn in run.turns], np.float64))
    per_min = counts / (edges[1] - edges[0]) * 60
    hits = np.divide(cached, prompt, out=np.full(len(prompt), np.nan), where=prompt > 0)
    return ((edges[:-1] + edges[1:]) / 2).tolist(), per_min.tolist(), hits.tolist()


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path)
    _pyplot().close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise Unavailable("--plot draws with matplotlib, which is not installed: pip install 'ramet[plot]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    return pyplot
