"""`ramet explain [REQUEST]`: why a request missed the cache: where, in which turn, and both texts at that place."""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from ramet.cli.server_client import get_json


def main(
    request: Annotated[str | None, typer.Argument(help="The answer's id; left out: the newest request.")] = None,
    base: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    as_json: Annotated[bool, typer.Option("--json", help="The account as JSON.")] = False,
) -> None:
    """Say why a request missed the cache."""
    if request is None:
        newest = get_json(base, "/v1/requests?limit=1")["data"]
        if not newest:
            typer.echo("No request has ended on this server yet.", err=True)
            raise typer.Exit(1)
        request = newest[0]["id"]
    found = get_json(base, f"/v1/requests/{quote(str(request), safe='')}")
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else told(found))


def told(found: dict[str, Any]) -> str:
    """An account, in lines."""
    cache = found["cache"]
    lines = [
        f"{found['id']}  {found['path']}  {found['client']}  finished: {found['finish']}",
        f"prompt {found['prompt_tokens']} tokens, {found['cached_tokens']} from the cache; {found['new_tokens']} new",
    ]
    if cache["cause"] is None:
        return "\n".join([*lines, cache["meaning"]])
    turn = f", in turn {cache['turn']} as the template wrote it" if "turn" in cache else ""
    lines += [
        f"{cache['cause']} at token {cache['at_token']}{turn}: {cache['not_cached_tokens']} tokens were computed."
    ]
    lines += [cache["meaning"]]
    if "evicted" in cache:
        lines += [f"evicted: {', '.join(f'{name} {value}' for name, value in cache['evicted'].items() if value)}"]
    shown = (("before", "the text before"), ("came", "this request went on"), ("cached_instead", "the cache had"))
    lines += [f"  {label:<21}{cache[name]!r}" for name, label in shown if cache.get(name)]
    return "\n".join(lines)
