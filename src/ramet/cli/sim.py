"""`ramet sim`: replay a trace through the real scheduler on a simulated machine, or measure the design's figures."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ramet.bench.form import commit, machine


def main(
    what: Annotated[
        list[str] | None, typer.Argument(help="`bars` [NAME ...]: measure figures (all without names).")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="A trace file to replay.")] = None,
    traces: Annotated[Path | None, typer.Option(help="bars: the folder of traces.")] = None,
    policy: Annotated[
        str, typer.Option(help="Who goes first and who stays: gittins, fcfs, lpm, B0 to B8, ...")
    ] = "gittins",
    gpu: Annotated[str, typer.Option(help="The simulated device.")] = "h200",
    model: Annotated[str, typer.Option(help="The simulated model.")] = "llama-3.1-8b",
    pool_tokens: Annotated[
        int | None, typer.Option(help="Tokens of KV memory; none: what the device has left.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of redrawn gaps and lengths.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, last.")] = False,
) -> None:
    """A day of traffic on a laptop: the same scheduler, tree and admission, a manual clock, no model."""
    if what and what[0] == "bars":
        _bars(what[1:], traces, as_json)
    elif what:
        print(f"ramet sim: expected `bars` or --trace FILE, got {what[0]!r}.", file=sys.stderr)
        raise typer.Exit(2)
    elif trace is None:
        print("ramet sim: expected `bars` or --trace FILE.", file=sys.stderr)
        raise typer.Exit(2)
    else:
        from ramet.runtime.simulate import cli

        found = cli.run(trace, policy, gpu, model, pool_tokens=pool_tokens, seed=seed)
        print(json.dumps(found) if as_json else "\n".join(f"{name:<32} {value}" for name, value in found.items()))


def _bars(names: list[str], traces: Path | None, as_json: bool) -> None:
    from ramet.runtime.simulate import cli
    from ramet.runtime.simulate.figure import Figure

    def tell(figure: Figure) -> None:
        print(cli.as_text(figure), file=sys.stderr if as_json else sys.stdout, flush=True)

    found = cli.bars(names, on_figure=tell) if traces is None else cli.bars(names, traces=traces, on_figure=tell)
    if as_json:
        print(json.dumps({"bench": "sim", "commit": commit(), "machine": machine(), **found}))
