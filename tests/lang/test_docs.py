"""The blocks of docs/dsl.md run, one after the other, on a scripted backend; what the page lists exists."""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.constrained import spec
from ramet.lang.backends.scripted import Prompt, Scripted
from ramet.lang.options import GEN_NAMES

PAGE = Path(__file__).parents[2] / "docs" / "dsl.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def answer(prompt: Prompt) -> str:
    match prompt.spec.grammar:
        case spec.JsonSchema():
            return '{"name": "Rome", "inhabitants": 2800000}'
        case spec.Choice(choices=choices):
            return choices[0]
        case _:
            return "words"


@pytest.fixture
def default() -> Iterator[Scripted]:
    backend = Scripted(answer)
    ramet.set_default_backend(backend)
    yield backend
    ramet.set_default_backend(None)
    assert backend.client.branches == {}


def test_blocks_run_in_order(default: Scripted) -> None:
    names: dict[str, Any] = {"__name__": "dsl_page"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for number, block in enumerate(BLOCKS):
            line = TEXT[: TEXT.index(block)].count("\n")
            exec(compile("\n" * line + block, str(PAGE), "exec"), names)
            assert number < len(BLOCKS)
    assert "words" in printed.getvalue() and "fork 3" in printed.getvalue()


def test_every_option_of_gen_is_on_the_page() -> None:
    missing = [name for name in GEN_NAMES - {"stop_regex", "choices_method", "tool_choice"} if f"`{name}" not in TEXT]
    assert missing == []


def test_the_stream_on_the_page_is_what_events_look_like() -> None:
    import msgspec

    from ramet.runtime.types import Event

    lines = re.findall(r"^data: (\{.*)$", TEXT, re.MULTILINE)
    kinds = [type(msgspec.json.decode(line, type=Event)).__name__ for line in lines]
    assert kinds == ["Started", "Delta", "Finished"]
