"""Programs on an OpenAI-compatible endpoint: what goes over the wire, what comes back, and what is refused."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ramet import OpenAI, State, assistant, function, gen, select, tool, user
from ramet.runtime.errors import BadRequest, Busy, EngineFailed, NotBuilt

Serve = Callable[..., Any]


class Endpoint:
    """Remembers what was asked; answers with what it was given."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, method: str, path: str, body: bytes) -> Any:
        self.asked.append((path, json.loads(body)))
        answer = self.answers[(len(self.asked) - 1) % len(self.answers)]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, dict):
            return answer
        return self.stream(answer)

    async def stream(self, chunks: list[dict[str, Any]]) -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield json.dumps(chunk).encode()
        yield b"[DONE]"


def chat_says(text: str, reason: str = "stop") -> list[dict[str, Any]]:
    middle = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in text]
    usage = {"prompt_tokens": 7, "completion_tokens": len(text), "prompt_tokens_details": {"cached_tokens": 3}}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return [{"choices": [{"index": 0, "delta": {"role": "assistant"}}]}, *middle, last, {"choices": [], "usage": usage}]


@function
def chat(s: State) -> None:
    s += user("one?") + assistant(gen("a", max_tokens=5, temperature=0.5, stop="\n"))
    s += user("two?") + assistant(gen("b"))


def test_chat(serve: Serve) -> None:
    endpoint = Endpoint(chat_says("yes"), chat_says("no", "length"))
    state = chat.run(backend=OpenAI(serve(endpoint).url + "/v1", "m", api_key="k"))
    assert (state["a"], state["b"]) == ("yes", "no")
    path, body = endpoint.asked[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "one?"}]
    assert (body["model"], body["max_tokens"], body["temperature"], body["stop"]) == ("m", 5, 0.5, ["\n"])
    assert endpoint.asked[1][1]["messages"] == [
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "two?"},
    ]
    assert state.get_meta_info("b")["finish_reason"]["type"] == "length"
    assert state.usage.prompt_tokens == 14 and state.usage.cached_tokens == 6
    assert state.text() == "user: one?\nassistant: yes\nuser: two?\nassistant: no\n"


def test_completion_forks_and_rollback(serve: Serve) -> None:
    endpoint = Endpoint([{"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}])

    @function
    def program(s: State) -> None:
        s += "Q: "
        mark = s.mark()
        forks = s.fork(2)
        forks += lambda i: f"{i} "
        forks += gen("t")
        forks.join()
        s += "bad"
        s.rollback(mark)
        s += gen("u")

    state = program.run(backend=OpenAI(serve(endpoint).url, "m"))
    assert sorted(body["prompt"] for _, body in endpoint.asked) == ["Q: ", "Q: 0 ", "Q: 1 "]
    assert state["u"] == "x" and state.text() == "Q: x"


def test_a_type_becomes_a_response_format(serve: Serve) -> None:
    @dataclass
    class City:
        name: str
        size: int

    endpoint = Endpoint(chat_says('{"name": "Rome", "size": 3}'))

    @function
    def program(s: State) -> None:
        s += user("?") + assistant(gen("city", dtype=City))

    assert program.run(backend=OpenAI(serve(endpoint).url, "m"))["city"] == City("Rome", 3)
    assert endpoint.asked[0][1]["response_format"]["json_schema"]["strict"] is True


def test_a_schema_that_may_be_held_in_part_is_judged_here(serve: Serve) -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    endpoint = Endpoint(chat_says('{"tags": [1, 1]}'))

    @function
    def program(s: State, whitespace: str | None) -> None:
        s += user("?") + assistant(gen("x", json_schema=schema, unsupported="declare", whitespace=whitespace))  # type: ignore[arg-type]

    backend = OpenAI(serve(endpoint).url, "m")
    failing = {"part": 0, "pointer": "/properties/tags/uniqueItems", "at": "/tags"}
    assert program.run(None, backend=backend).get_meta_info("x")["violations"] == [failing]
    assert endpoint.asked[0][1]["response_format"]["json_schema"]["strict"] is False
    with pytest.raises(NotBuilt, match="whitespace"):
        program.run("compact", backend=backend)


def test_tools_go_out_and_come_back_as_the_api_has_them(serve: Serve) -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    call = [
        {"choices": [{"delta": {"content": "I add."}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "add", "arguments": ""}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1, "b": 2}'}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    ]
    endpoint = Endpoint(call, chat_says("It is 3."))

    @function
    def program(s: State) -> None:
        s += user("1 + 2?")
        s += assistant(gen("step", tools=[add]))
        while s.call_tools():
            s += assistant(gen("step", tools=[add]))

    state = program.run(backend=OpenAI(serve(endpoint).url, "m"))
    assert state["step"] == "It is 3."
    first, second = (body for _, body in endpoint.asked)
    assert first["tools"] == [add.schema] and first["tool_choice"] == "auto"
    assert second["messages"][1:] == [
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [
                {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "call_0"},
    ]


def test_logprobs(serve: Serve) -> None:
    content = [{"token": "a", "logprob": -0.1, "top_logprobs": [{"token": "a", "logprob": -0.1}]}]
    chunk = {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": content}, "finish_reason": "stop"}]}
    endpoint = Endpoint([chunk])

    @function
    def program(s: State) -> None:
        s += user("?") + assistant(gen("a", logprobs=1))

    state = program.run(backend=OpenAI(serve(endpoint).url, "m"))
    assert state.get_meta_info("a")["output_token_logprobs"] == [(-0.1, -1, None)]


def test_select_by_echo(serve: Serve) -> None:
    def echo(*logprobs: float) -> dict[str, Any]:
        return {"choices": [{"logprobs": {"token_logprobs": [None, *logprobs, -9], "text_offset": [0, 3, 4, 5]}}]}

    endpoint = Endpoint(echo(-2.0, -2.0), echo(-1.0, -1.0))

    @function
    def program(s: State) -> None:
        s += "Is" + " " + select("c", ["ab", "cd"], choices_method="token_length_normalized")

    state = program.run(backend=OpenAI(serve(endpoint).url, "m"))
    assert state["c"] == "cd" and state.text() == "Is cd"
    assert state.get_meta_info("c")["scores"] == [-2.0, -1.0]


@pytest.mark.parametrize(
    ("spoken", "what"),
    [
        (lambda: user("?") + assistant(select("c", ["a", "b"])), "select"),
        (lambda: "text " + select("c", ["a", "b"]), "total"),
        (lambda: user("?") + assistant(gen("a", regex="x+")), "regex"),
        (lambda: "text " + gen("a", regex="x+"), "constraint"),
        (lambda: user("?") + assistant(gen("a", top_k=3)), "top_k"),
        (lambda: user("?") + assistant(gen("a", min_tokens=3, ignore_eos=True)), "min_tokens"),
        (lambda: user("?") + assistant("Well, " + gen("a")), "continuing"),
        (lambda: user("I am " + gen("a")), "user message"),
        (lambda: user("?") + assistant(gen("a", logprobs=1, logprob_start_len=0)), "prompt"),
        (lambda: user("?") + "loose text" + gen("a"), "outside of roles"),
    ],
)
def test_what_the_api_has_no_word_for_is_refused(serve: Serve, spoken: Callable[[], Any], what: str) -> None:
    @function
    def program(s: State) -> None:
        s += spoken()

    endpoint = Endpoint(chat_says("x"))
    with pytest.raises(NotBuilt, match=what):
        program.run(backend=OpenAI(serve(endpoint).url, "m"))
    assert endpoint.asked == []


def test_extensions_are_sent_to_servers_that_know_them(serve: Serve) -> None:
    @function
    def program(s: State) -> None:
        s += user("?") + assistant("Well, " + gen("a", top_k=3, min_tokens=2))

    endpoint = Endpoint(chat_says("x"))
    program.run(backend=OpenAI(serve(endpoint).url, "m", extensions=True, extra_body={"chat_template_kwargs": {}}))
    (_, body) = endpoint.asked[0]
    assert (body["top_k"], body["min_tokens"], body["continue_final_message"]) == (3, 2, True)
    assert body["messages"][-1] == {"role": "assistant", "content": "Well, "} and "chat_template_kwargs" in body


def test_errors_of_the_endpoint(serve: Serve) -> None:
    @function
    def program(s: State) -> None:
        s += user("?") + assistant(gen("a"))

    for answer, error in (
        (Busy("slow down"), Busy),
        ([{"error": {"message": "boom"}}], EngineFailed),
        ([{"choices": [{"delta": {"content": "x"}}]}], EngineFailed),
    ):
        with pytest.raises(error):
            program.run(backend=OpenAI(serve(Endpoint(answer)).url, "m"))
    with pytest.raises(BadRequest, match="model"):
        OpenAI("http://localhost")
