"""What a newcomer gets wrong, and what the error says: what was expected, what came, where, and what to do."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

import ramet
from ramet import AsyncState, Scripted, State, assistant, function, gen, role, select, user
from ramet.lang.state import NotAwaited
from ramet.runtime.errors import BadRequest, EngineFailed, ModelNotFound, Unavailable

Make = Callable[..., Scripted]
Body = Callable[[State], Any]


def forks_of(s: State) -> Any:
    s += "Hi"
    forks = s.fork(2)
    forks += gen("tip")
    return forks


def reads_before_the_join(s: State) -> None:
    forks_of(s)
    s["tip"]


def reads_a_near_name(s: State) -> None:
    s += "Hi" + gen("answer")
    s["anwser"]


def says(spoken: Any) -> Body:
    def body(s: State) -> None:
        s += spoken() if callable(spoken) else spoken

    return body


def asks(**options: Any) -> Body:
    return says(lambda: "Hi" + gen("a", **options))


MISTAKES: dict[str, tuple[Body, str]] = {
    "gen in an f-string": (says(lambda: f"Hi {gen('a')}"), r"joined by \+, got gen\('a'\).*\"\.\.\.\" \+ gen\('a'\)"),
    "select in an f-string": (says(lambda: f"{select('a', ['x', 'y'])}!"), r"An f-string is made at once"),
    "a misspelled option": (
        asks(max_token=4),
        r"option of gen, got 'max_token' - at `\$\.max_token`. Did you mean 'max_",
    ),
    "an unheard-of option": (asks(beam_width=4), r"got 'beam_width' .*Known: allowed_token_ids"),
    "a misspelled variable": (reads_a_near_name, r"one of \['answer'\], got 'anwser' .*Did you mean 'answer'\?"),
    "a variable before its gen": (lambda s: s["x"], r"there is none yet.*Say it first: s \+= gen\(\"x\"\)"),
    "a gen that was not said": (lambda s: (gen("a"), s["a"]), r"Say it first: s \+= gen\(\"a\"\)"),
    "a branch's variable before the join": (reads_before_the_join, r"A branch below has it: .*join first"),
    "a fork of 0": (lambda s: s.fork(0), r"1 or more branches, got 0 .*leave the fork out"),
    "a fork of a text": (lambda s: s.fork("2"), r"got '2' .*whole number"),  # type: ignore[arg-type]
    "a branch that was joined": (
        lambda s: (forks := forks_of(s), forks.join(), forks[0].branch.say("x", None)),
        r"a branch that is open.*fork again",
    ),
    "an index past the fork": (lambda s: s.fork(2)[5], r"a branch from 0 to 1, got 5 - at `forks\[5\]`"),
    "a variable of all branches": (lambda s: forks_of(s)["tip"], r"got 'tip' .*\[s\['tip'\] for s in forks\]"),
    "max_tokens as text": (asks(max_tokens="20"), r"whole number, 0 or more, got '20' - at `\$.max_tokens`"),
    "max_tokens below 0": (asks(max_tokens=-1), r"0 or more, got -1"),
    "a hot temperature as text": (asks(temperature="hot"), r"a finite number, got 'hot' - at `\$.temperature`"),
    "stop as a number": (
        asks(stop=5),
        r"a list of texts, none empty, got 5 - at `\$.stop`. Token ids go into stop_tok",
    ),
    "no stop text": (asks(stop=""), r"none empty, got ''"),
    "choices as one text": (says(lambda: select("a", "yes")), r"a list of texts, got 'yes' .*\['yes', \.\.\.\]"),
    "no choices": (says(lambda: select("a", [])), r"one or more texts, none empty, got \[\] - at `\$.choices`.$"),
    "numbers as choices": (says(lambda: select("a", [1, 2])), r"got \[1, 2\] .*str\(x\)"),  # type: ignore[list-item]
    "equal choices": (says(lambda: select("a", ["x", "x"])), r"different choices, got \"'x' more than once\""),
    "two constraints": (asks(regex="a", dtype=int), r"one constraint, got \['dtype', 'regex'\] .*choose one"),
    "a list as a type": (asks(dtype=["x", "y"]), r"a type, got \['x', 'y'\] .*choices=\[\.\.\.\] or dtype=Literal"),
    "JSON that is none": (asks(json_schema="{"), r"JSON text, got '{' - at `\$.json_schema`. "),
    "a helper without return": (says(lambda: None), r"got None .*forget to return"),
    "a number": (says(5), r"got 5 .*str\(\.\.\.\) makes text"),
    "a message as a mapping": (says({"role": "user", "content": "x"}), r"s \+= user\(text\)"),
    "s = s + text": (lambda s: s + "x", r"expected s \+= \.\.\., got 's \+ \.\.\.'"),
    "text + s": (lambda s: "x" + s, r"Its text is s\.text\(\)"),
    "a message in a message": (says(lambda: user("x" + assistant("y"))), r"end of the user message.*end it first"),
    "a role without a name": (says(lambda: role(5, "x")), r"role's name as text, got 5"),  # type: ignore[arg-type]
    "half a character": (says("\udcff"), r"valid Unicode, got '\\udcff' - at `s \+= \.\.\., character 0`"),
    "a rollback to nowhere": (lambda s: s.rollback(None), r"what s\.mark\(\) gave, got None"),  # type: ignore[arg-type]
    "another type than was made": (lambda s: (asks()(s), s.get("a", int)), r"expected int, got 'ok' .*dtype=int"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told(scripted: Make, name: str) -> None:
    body, text = MISTAKES[name]
    with pytest.raises(BadRequest, match=text):
        function(lambda s: body(s)).run(backend=scripted("ok"))


AWAITS: dict[str, Callable[[AsyncState], Any]] = {
    "a method": lambda s: s["a"].strip(),  # type: ignore[attr-defined]
    "a sum": lambda s: "so " + s["a"],  # type: ignore[operator]
    "an f-string": lambda s: f"so {s['a']}",
    "a comparison": lambda s: s["a"] == "ok",  # type: ignore[comparison-overlap]
    "a condition": lambda s: 1 if s["a"] else 2,
    "a loop": lambda s: list(s["a"]),  # type: ignore[call-overload]
    "a number": lambda s: int(s["a"]),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("name", AWAITS)
def test_a_missing_await_is_told(scripted: Make, name: str) -> None:
    @function
    async def program(s: AsyncState) -> None:
        s += "Hi" + gen("a")
        AWAITS[name](s)

    with pytest.raises(NotAwaited, match=r"expected await s\['a'\]"):
        program.run(backend=scripted("ok"))


def test_a_coroutine_is_not_said(scripted: Make) -> None:
    @function
    async def program(s: AsyncState) -> None:
        s += "Hi"
        s += s.text()  # type: ignore[arg-type]

    with pytest.raises(BadRequest, match="Await it"):
        program.run(backend=scripted("ok"))


def test_values_of_async_programs_may_be_gathered(scripted: Make) -> None:
    import asyncio

    @function
    async def program(s: AsyncState) -> list[str]:
        s += "Hi" + gen("a") + gen("b")
        return list(await asyncio.gather(s["a"], s["b"]))

    assert program.run(backend=scripted("ok")).ret_value == ["ok", "ok"]


@function
def tip(s: State, topic: str) -> None:
    s += f"On {topic}: " + gen("tip")


def test_wrong_arguments_of_a_program(scripted: Make) -> None:
    backend = scripted("ok")
    for call, text in (
        (lambda: tip.run(topics="x", backend=backend), r"argument of tip \(topic\), got 'topics' .*mean 'topic'\?"),
        (lambda: tip.run(topic="x", temprature=1, backend=backend), r"Did you mean 'temperature'\?"),
        (
            lambda: tip.run(backend=backend),
            r"expected tip\(topic\), got 'tip\(\)' .*missing a required argument: 'topic'",
        ),
        (lambda: tip.run("x", backend="smollm"), r"expected Engine, RuntimeEndpoint, OpenAI.*got 'smollm'"),
        (lambda: tip.run_batch({"topic": "x"}), r"a list of items, got .*\[\{'name': value\}, \.\.\.\]"),  # type: ignore[dict-item]
        (lambda: tip.run_batch(["x"]), r"a mapping or a tuple of arguments, got 'x' - at `batch\[0\]`"),  # type: ignore[list-item]
    ):
        with pytest.raises(BadRequest, match=text):
            call()


def test_a_wrong_item_of_a_batch_is_named(scripted: Make) -> None:
    with pytest.raises(BadRequest, match="topics") as caught:
        tip.run_batch([{"topic": "x"}, {"topics": "y"}], backend=scripted("ok"))
    assert caught.value.__notes__ == ["  in batch[1]"]


def test_a_function_without_a_state() -> None:
    with pytest.raises(BadRequest, match="first argument is the state"):

        @function  # type: ignore[arg-type]
        def program() -> None: ...


def test_tokens_after_the_end(scripted: Make) -> None:
    with pytest.raises(BadRequest, match=r"s\.tokens\(\)`. Take them inside the program"):
        tip.run("x", backend=scripted("ok")).tokens()


def test_a_forgotten_f_is_warned_of_once(scripted: Make, caplog: pytest.LogCaptureFixture) -> None:
    @function
    def program(s: State, topic: str) -> None:
        s += 'On {topic}, as {"json": 1}: '
        s += "On {topic} again: {other}" + gen("a")

    with caplog.at_level(logging.WARNING, "ramet.lang"):
        program.run("sleep", backend=scripted("ok"))
        program.trace()
    assert [record.getMessage().partition(" (at")[0] for record in caplog.records] == [
        'program program says "{topic}" as it stands, and topic is its argument: is an f missing before the quotes?'
    ]
    assert "test_mistakes.py" in caplog.text


def test_a_name_said_again_is_bound_anew(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "Hi" + gen("a")
        s += gen("a")

    state = program.run(backend=scripted(["one", "two"]))
    assert state["a"] == "two" and state.text() == "Hionetwo"


def test_wrong_settings_of_an_engine_are_told_before_anything_loads() -> None:
    with pytest.raises(BadRequest, match=r"setting of Engine, got 'kv_token' .*Did you mean 'kv_tokens'\?"):
        ramet.Engine(kv_token=4096)
    for model in ("no-such-model", "./no-such/model", "models/none.gguf", "smollm2-135m-instrukt"):
        with pytest.raises(ModelNotFound, match=r"neither a path nor a model on this machine\. Found: "):
            ramet.Engine(model).ready()


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(Unavailable, match=r"nobody answers at http://127.0.0.1:9.*`ramet serve` starts one") as caught:
        tip.run("x", backend=ramet.RuntimeEndpoint("http://127.0.0.1:9", wait_s=0))
    assert "<unknown>" not in "".join(getattr(caught.value, "__notes__", []))


def test_a_line_of_an_interactive_session_is_named(scripted: Make) -> None:
    names = {"function": function, "gen": gen, "backend": scripted([EngineFailed("no more")])}
    text = "@function\ndef program(s):\n    s += 'Hi' + gen('a')\n\nprogram.run(backend=backend)\n"
    with pytest.raises(EngineFailed) as caught:
        exec(compile(text, "<stdin>", "exec"), names)
    assert caught.value.__notes__ == ["  from gen('a') at <stdin>:3 in program"]


def test_a_misspelled_word_of_the_language_is_suggested() -> None:
    with pytest.raises(AttributeError, match="genn") as caught:
        ramet.genn  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("genn", ramet)  # from these Python says: Did you mean: 'gen'?
