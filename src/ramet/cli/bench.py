"""`ramet bench NAME`: run one benchmark and print its figures, as a table or as one JSON object on the last line."""

import json
import pkgutil
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated

import typer

import ramet.bench
from ramet.bench.form import Measured, NotCorrect, report, to_json

_NOT_BENCHMARKS = {"form", "grammar_peer"}


def main(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Which one; `list` names them.")] = "list",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, last.")] = False,
    option: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="An option of this benchmark: key=value.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="grammar: which suite.")] = None,
    data: Annotated[str | None, typer.Option(help="grammar: the suite's file.")] = None,
    base: Annotated[str | None, typer.Option(help="serve: the server's base URL.")] = None,
    versus: Annotated[list[str] | None, typer.Option(help="engine: a peer to run beside.")] = None,
) -> None:
    """Measure something of Ramet. A benchmark that finds itself wrong prints no number and exits 1."""
    if name == "list":
        print("\n".join(names()))
        return
    if name not in names():
        print(f"ramet bench: expected one of {', '.join(names())}, got {name!r}.", file=sys.stderr)
        raise typer.Exit(2)
    options: dict[str, object] = {**dict(pair.split("=", 1) for pair in option or [])}
    options |= {k: v for k, v in dict(suite=suite, data=data, base=base, versus=versus).items() if v}
    try:
        measured: Measured = import_module(f"ramet.bench.{name}").measure(options)
    except NotCorrect as error:
        print(f"ramet bench {name}: no figures, its own check failed: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    result = report(name, measured)
    if not as_json:
        print(table(result))
    print(to_json(result))


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(
        module.name for module in pkgutil.iter_modules(ramet.bench.__path__) if module.name not in _NOT_BENCHMARKS
    )


def table(result: Mapping[str, object]) -> str:
    """The figures, one a line, with their bars."""
    figures, bars = json.loads(json.dumps(result["figures"])), json.loads(json.dumps(result["bars"]))
    by_name = {bar["name"]: bar for bar in bars}
    width = max((len(name) for name in figures), default=0)
    return "\n".join(
        f"{name:<{width}}  {value:>14.6g}{_judgement(by_name.get(name))}" for name, value in figures.items()
    )


def _judgement(bar: dict[str, object] | None) -> str:
    if bar is None:
        return ""
    return f"   bar {bar['sense']} {bar['bar']:<8g} {'holds' if bar['holds'] else 'MISSED'}"
