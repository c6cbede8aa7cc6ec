"""The `ramet` command: a table of subcommands, each imported only when it is asked for.

A subcommand is a module `ramet.cli.NAME` with a typer function `main`; its options are that function's parameters. So
`ramet --help` imports none of them, and `ramet serve` does not pay for `ramet bench`.
"""

import os
import sys
from importlib import import_module
from typing import NoReturn

COMMANDS: dict[str, str] = {
    "demo": "Run a program with roles, a fork, a join and a second turn on the default model.",
    "run": "Run a program of yours: ramet run FILE [--fn NAME --arg k=v].",
    "chat": "Talk to a model in the terminal.",
    "complete": "Complete one prompt.",
    "serve": "Serve a model: OpenAI, Anthropic and native HTTP.",
    "models": "List the models found on this machine.",
    "doctor": "Check this machine: processor, memory, versions, model, one token.",
    "bench": "Measure: ramet bench NAME [--json].",
    "sim": "Replay a trace through the scheduler, without a model.",
    "launch": "Print the settings that point an agent at this server.",
    "top": "Watch a running server.",
    "explain": "Say why a request missed the cache.",
    "config": "Print every setting, its value and where it came from.",
}
"""Name -> one line of help. Those without a module yet say so when called."""


def main() -> NoReturn:
    """Entry point of the console script."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(usage())
        sys.exit(0)
    if name in ("-V", "--version"):
        from ramet.version import __version__

        print(f"ramet {__version__}")
        sys.exit(0)
    if name not in COMMANDS:
        from ramet.lang.suggest import did_you_mean

        hint = did_you_mean(name, COMMANDS) or "`ramet --help` lists them."
        print(f"ramet: expected a command, got {name!r}. {hint}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(name, arguments[1:]))


def usage() -> str:
    """What `ramet --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items() if exists(name)]
    return "\n".join(["usage: ramet COMMAND [OPTIONS]", "", *lines, "", "`ramet COMMAND --help` tells its options."])


def exists(name: str) -> bool:
    """Is this subcommand there?"""
    from importlib.util import find_spec

    return find_spec(f"ramet.cli.{name}") is not None


def run(name: str, arguments: list[str]) -> int:
    """Import one subcommand and call it; our own errors become one line and exit code 1."""
    import typer

    from ramet.runtime.errors import RametError

    if not exists(name):
        print(f"ramet: `ramet {name}` is not built yet.", file=sys.stderr)
        return 2
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name=name)(import_module(f"ramet.cli.{name}").main)
    try:
        app(arguments, prog_name=f"ramet {name}", standalone_mode=True)
    except RametError as error:
        if os.environ.get("RAMET_TRACEBACK"):
            raise
        print(f"ramet: {error}", file=sys.stderr)
        return 1
    return 0
