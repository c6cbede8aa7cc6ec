"""`ramet sim`: replay a trace through the real scheduler on a simulated machine, or measure the design's figures."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramet.bench.form import NotCorrect, commit, machine, report, to_json
from ramet.runtime.errors import BadRequest

if TYPE_CHECKING:
    from ramet.runtime.simulate.runner import Replay


def main(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="`bars` [NAME ...]: measure figures (all without names). `fidelity`: the engine beside the simulator."
        ),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="A trace file to replay.")] = None,
    traces: Annotated[Path | None, typer.Option(help="bars: the folder of traces.")] = None,
    policy: Annotated[
        str, typer.Option(help="Who goes first and who stays: gittins, fcfs, B0 to B8, ...; several: with commas.")
    ] = "gittins",
    without: Annotated[
        list[str] | None,
        typer.Option(
            help="A part of gittins to leave out: retention, admission, order, gang, splice. May be repeated."
        ),
    ] = None,
    gpu: Annotated[str, typer.Option(help="The simulated device.")] = "h200",
    model: Annotated[str, typer.Option(help="The simulated model.")] = "llama-3.1-8b",
    pool_tokens: Annotated[
        int | None, typer.Option(help="Tokens of KV memory; none: what the device has left.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Sessions to replay of a trace with arrival times.")] = None,
    live: Annotated[int, typer.Option(help="Sessions at once, of a trace without arrival times.")] = 48,
    until_s: Annotated[float, typer.Option(help="Simulated seconds, of a trace without arrival times.")] = 1200.0,
    seed: Annotated[int, typer.Option(help="Of redrawn gaps and lengths.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="bars: fewer seeds, loads and sessions.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw to this .png or .svg: of runs, or of bars S6.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, last.")] = False,
) -> None:
    """A day of traffic on a laptop: the same scheduler, tree and admission, a manual clock, no model."""
    if what and what[0] == "bars":
        _bars(what[1:], traces, quick=quick, plot=plot, as_json=as_json)
    elif what == ["fidelity"]:
        _fidelity(as_json)
    elif what or trace is None:
        got = f", got {' '.join(what)!r}" if what else ""
        print(f"ramet sim: expected `bars`, `fidelity` or --trace FILE{got}.", file=sys.stderr)
        raise typer.Exit(2)
    else:
        settings = dict(pool_tokens=pool_tokens, limit=limit, num_live=live, until_s=until_s, seed=seed)
        _runs(trace, policy.split(","), gpu, model, without or (), plot, as_json, settings)


def _runs(
    trace: Path,
    policies: Sequence[str],
    gpu: str,
    model: str,
    without: Sequence[str],
    plot: Path | None,
    as_json: bool,
    settings: Mapping[str, Any],
) -> None:
    from ramet.runtime.simulate import cli, plots

    if plot is not None:
        plots.check_plot(plot)
    replays: dict[str, Replay] = {}
    found = []
    for policy in policies:
        keep = partial(replays.__setitem__, policy)
        found.append(cli.run(trace, policy, gpu, model, without=without, on_replay=keep, **settings))
        if not as_json:
            print("\n".join(f"{name:<32} {value}" for part in found[-1].values() for name, value in _items(part)))
    if plot is not None:
        plots.plot_runs(replays, plot)
    if as_json:
        print(json.dumps(found[0] if len(found) == 1 else {"runs": found}))


def _items(part: object) -> Iterable[tuple[str, object]]:
    assert isinstance(part, dict)
    return part.items()


def _bars(names: list[str], traces: Path | None, *, quick: bool, plot: Path | None, as_json: bool) -> None:
    from ramet.runtime.simulate import cli, plots
    from ramet.runtime.simulate.figure import Figure

    if plot is not None:
        plots.check_plot(plot)
        if names and "S6" not in names:
            raise BadRequest(expected="bars with S6, the figure that is drawn", got=" ".join(names), at="--plot")

    def tell(figure: Figure) -> None:
        print(cli.as_text(figure), file=sys.stderr if as_json else sys.stdout, flush=True)
        if plot is not None and figure.name == "S6":
            plots.plot_load_curve(figure, plot)

    found = cli.bars(names, traces=cli.TRACES if traces is None else traces, quick=quick, on_figure=tell)
    if as_json:
        print(json.dumps({"bench": "sim", "commit": commit(), "machine": machine(), **found}))


def _fidelity(as_json: bool) -> None:
    """S15, which needs the engine and a quiet machine, and so is no part of the bars that any machine runs."""
    from ramet.bench.fidelity import measure
    from ramet.cli.bench import table

    try:
        result = report("fidelity", measure())
    except NotCorrect as error:
        print(f"ramet sim fidelity: no figures, its own check failed: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(to_json(result) if as_json else table(result))
