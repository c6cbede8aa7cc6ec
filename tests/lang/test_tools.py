"""Functions become tools: schema from the signature, calls from the text, results and errors back to the model."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest

from ramet import AsyncState, State, assistant, describe_tools, function, gen, system, tool, user
from ramet.lang.backends.scripted import Prompt, Scripted
from ramet.lang.calls import ToolCall, call_spec, parse_calls, read_spec, without_calls, write_call
from ramet.lang.tools import Tool, as_text, by_name
from ramet.runtime.errors import BadRequest

Make = Callable[..., Scripted]


@dataclass
class Place:
    city: str
    country: str = "IT"


@tool
def weather(place: Place, unit: Literal["C", "F"] = "C", days: list[int] = [1]) -> dict[str, object]:  # noqa: B006
    """Look up the weather.

    In more words.

    Args:
        place: Where.
        unit (str): Of the answer.
    """
    return {"city": place.city, "unit": unit, "days": days}


@tool(timeout_s=5, retries=1)
async def add(a: int, b: Annotated[int, msgspec.Meta(description="the other", ge=0)]) -> int:
    """Add.

    :param a: the one
    """
    await asyncio.sleep(0)
    return a + b


def call(name: str, **arguments: object) -> str:
    return write_call(name, json.dumps(arguments))


def test_schema_from_signature_and_docstring() -> None:
    schema = weather.schema["function"]
    assert isinstance(schema, dict)
    assert (schema["name"], schema["description"]) == ("weather", "Look up the weather.\n\nIn more words.")
    parameters = schema["parameters"]
    assert parameters["required"] == ["place"] and parameters["additionalProperties"] is False
    assert parameters["properties"]["unit"]["enum"] == ["C", "F"]
    assert parameters["properties"]["unit"]["description"] == "Of the answer."
    jsonschema.Draft202012Validator.check_schema(parameters)
    jsonschema.validate({"place": {"city": "Rome"}, "unit": "F"}, parameters)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"place": {"city": "Rome"}, "unit": "K"}, parameters)
    assert add.parameters["properties"] == {
        "a": {"type": "integer", "description": "the one"},
        "b": {"type": "integer", "description": "the other", "minimum": 0},
    }


def test_a_tool_is_still_its_function() -> None:
    assert weather(Place("Rome")) == {"city": "Rome", "unit": "C", "days": [1]}
    assert weather.__doc__ is not None and weather.__name__ == "weather"


def test_parameters_without_names_are_refused() -> None:
    with pytest.raises(BadRequest, match="by name"):

        @tool
        def anything(*args: int) -> None: ...


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no call", []),
        (call("f", a=1), [("f", '{"a": 1}')]),
        ("I think. " + call("f") + "\n" + call("g", x="</b>") + " done", [("f", "{}"), ("g", '{"x": "</b>"}')]),
        ('<tool_call>{"name": "f"}</tool_call>', [("f", "{}")]),
        ('<tool_call>\n{"name": "f", "arguments": "{\\"a\\": 1}"}', [("f", '{"a": 1}')]),  # cut; arguments as text
    ],
)
def test_calls_in_a_text(text: str, found: list[tuple[str, str]]) -> None:
    assert [(c.name, c.arguments) for c in parse_calls(text)] == found
    assert [c.id for c in parse_calls(text, first=3)] == [f"call_{3 + i}" for i in range(len(found))]


@pytest.mark.parametrize("body", ["", "{", "[]", "3", '{"arguments": {}}', '{"name": 3}'])
def test_what_is_no_call_is_a_problem_for_the_model(body: str) -> None:
    (found,) = parse_calls(f"<tool_call>{body}</tool_call>")
    assert found.problem is not None and found.problem.startswith("Error: this is no tool call")


@pytest.mark.parametrize("choice", ["auto", "required", "add"])
def test_the_grammar_of_a_call_can_be_read_back(choice: str) -> None:
    schemas = {name: each.parameters for name, each in by_name([weather, add]).items()}
    read = read_spec(call_spec(schemas, choice))
    assert read is not None
    assert read == ((["add"] if choice == "add" else ["weather", "add"]), choice)
    with pytest.raises(BadRequest, match="tool_choice"):
        call_spec(schemas, "sub")


def test_without_calls() -> None:
    assert without_calls("I look. " + call("f") + "\n") == "I look."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Place("Rome"), '{"city":"Rome","country":"IT"}'),
        (None, "null"),
    ],
)
def test_results_as_text(value: object, text: str) -> None:
    assert as_text(value) == text


def test_long_results_are_cut_and_say_so() -> None:
    assert as_text("x" * 30_000).endswith("[cut: 10000 more characters]")


def run(which: Tool[..., Any], **arguments: object) -> Any:
    return asyncio.run(which.run(ToolCall("call_0", which.name, json.dumps(arguments))))


def test_arguments_are_checked_and_typed() -> None:
    assert run(weather, place={"city": "Rome"}, unit="F").value == {"city": "Rome", "unit": "F", "days": [1]}
    for wrong in ({"place": "Rome"}, {}, {"place": {"city": "Rome"}, "other": 1}):
        result = run(weather, **wrong)
        assert result.text.startswith("Error: ValidationError") and result.value is None


def test_retries_and_timeouts() -> None:
    attempts: list[int] = []

    @tool(retries=2)
    def flaky() -> str:
        """Fail twice."""
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("not yet")
        return "ok"

    @tool(timeout_s=0.05)
    async def slow() -> None:
        """Sleep."""
        await asyncio.sleep(5)

    assert run(flaky).text == "ok" and len(attempts) == 3
    attempts[:] = [1, 1, 1, 1]
    assert run(slow).text == "Error: TimeoutError: no result within 0.05 s"


@function
def agent(s: State, question: str) -> None:
    s += user(question)
    s += assistant(gen("step", tools=[weather, add]))
    while s.call_tools():
        s += assistant(gen("step", tools=[weather, add]))


def test_an_agent_runs_its_tools_side_by_side_inside_a_gap(scripted: Make) -> None:
    backend = scripted(["Let me see. " + call("add", a=1, b=2) + "\n" + call("nope"), "It is 3."])
    state = agent.run("1 + 2?", backend=backend)
    assert state["step"] == "It is 3."
    roles = [(m["role"], m.get("name"), m.get("tool_call_id")) for m in state.messages()]
    assert roles == [
        ("user", None, None),
        ("assistant", None, None),
        ("tool", "add", "call_0"),
        ("tool", "nope", "call_1"),
        ("assistant", None, None),
    ]
    assert state.messages()[2]["content"] == "3"
    assert "there is no tool 'nope'" in state.messages()[3]["content"]
    assert [(kind, name) for kind, name, _ in backend.client.gaps] == [("tool", "add")]


def test_the_grammar_and_the_tools_reach_the_engine(scripted: Make) -> None:
    seen: list[Prompt] = []

    def rule(prompt: Prompt) -> str:
        seen.append(prompt)
        return "done"

    agent.run("?", backend=scripted(rule))
    assert read_spec(seen[0].spec.grammar) == (["weather", "add"], "auto")


def test_tools_of_branches_run_concurrently(scripted: Make) -> None:
    inside = threading.Barrier(3, timeout=5)

    @tool
    def meet() -> str:
        """Wait for the others."""
        inside.wait()
        return "met"

    @function
    def program(s: State) -> None:
        s += user("?") + assistant(gen("c"))
        forks = s.fork(3)
        threads = [threading.Thread(target=f.call_tools, args=(meet,)) for f in forks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [f.messages()[-1]["content"] for f in forks] == ["met"] * 3

    program.run(backend=scripted(call("meet")))


def test_no_calls_no_results(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += user("?") + assistant(gen("a"))
        assert s.call_tools(add) == []
        assert s.messages()[-1]["role"] == "assistant"

    program.run(backend=scripted("just text"))


def test_results_are_given_to_the_program(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += system(describe_tools([add])) + user("?") + assistant(gen("a"))
        (result,) = s.call_tools(add)
        assert (result.value, result.text, result.error) == (5, "5", None)
        assert s.call_tools(add) == []  # they were answered

    state = program.run(backend=scripted(call("add", a=2, b=3)))
    assert '"name":"add"' in state.messages()[0]["content"]


async def test_async_program_with_tools(scripted: Make) -> None:
    @function
    async def program(s: AsyncState) -> None:
        s += user("?") + assistant(gen("a"))
        while await s.call_tools(add):
            s += assistant(gen("a"))

    state = await program.arun(backend=scripted([call("add", a=2, b=3), "five"]))
    assert state["a"] == "five"


def test_eager_tools_start_before_the_turn_ends(scripted: Make) -> None:
    started: list[float] = []

    @tool(eager=True)
    def look(x: int) -> int:
        """Look."""
        started.append(time.monotonic())
        return x

    @function
    def program(s: State) -> float:
        s += user("?") + assistant(gen("a", tools=[look], max_tokens=400))
        s.sync()
        ended = time.monotonic()
        (result,) = s.call_tools()
        assert result.value == 7 and len(started) == 1
        return ended - started[0]

    text = call("look", x=7) + " and then some more words to say"
    assert program.run(backend=scripted(text, delay_s=0.01), stream=False).ret_value > 0.1


def test_a_tool_may_run_a_program_of_its_own(scripted: Make) -> None:
    backend = scripted(lambda p: call("research", topic="bees") if "ask" in p.text else "about bees")

    @function
    def inner(s: State, topic: str) -> None:
        s += f"{topic}: " + gen("found")

    @tool
    def research(topic: str) -> str:
        """Find out."""
        return str(inner.run(topic)["found"])

    @function
    def outer(s: State) -> str:
        s += user("ask") + assistant(gen("a"))
        (result,) = s.call_tools(research)
        return result.text

    state = outer.run(backend=backend)
    assert state.ret_value == "about bees"
    parents = {spec.program_id: spec.parent for spec in backend.client.programs.values()}
    assert list(parents.values()) == [None, state.program_id]


def test_expected_time_of_a_gap_is_learned(scripted: Make) -> None:
    backend = scripted([call("add", a=1, b=1), "x"])
    agent.run("?", backend=backend)
    agent.run("?", backend=backend)
    (_, _, expected_s) = backend.client.gaps[-1]
    assert expected_s is not None and 0 <= expected_s < 1
