"""What the commands that watch a server share: one GET, and errors for people."""

import json
import os
import urllib.error
import urllib.request
from typing import Any

import typer

TIMEOUT_S = 10.0


def get(base: str, path: str) -> bytes:
    """The body of an answer; typer.Exit with a message where there is none. The key, if any, is RAMET_API_KEY."""
    base = base if "://" in base else f"http://{base}"
    key = os.environ.get("RAMET_API_KEY")
    request = urllib.request.Request(base.rstrip("/") + path, headers={"authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        hint = " Set RAMET_API_KEY to a key of this server." if error.code == 401 else ""
        typer.echo(f"{base} answered {error.code}: {_message(error.read())}{hint}", err=True)
    except (OSError, ValueError) as error:
        typer.echo(f"expected a running `ramet serve` at {base}, got: {getattr(error, 'reason', error)}.", err=True)
    raise typer.Exit(1)


def get_json(base: str, path: str) -> Any:
    return json.loads(get(base, path))


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
