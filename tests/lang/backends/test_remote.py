"""A program over HTTP runs as it does here: same texts, values, usage, errors; cancelling reaches the server."""

import math
import time
from collections.abc import Callable
from typing import Any

import pytest

import ramet
from ramet import RuntimeEndpoint, State, assistant, function, gen, select, user
from ramet.lang.backends.http import HttpClient
from ramet.lang.backends.scripted import ScriptedClient
from ramet.lang.loop import PROGRAMS
from ramet.runtime.errors import BadRequest, EngineFailed, NotBuilt, NotFound, TimedOut, Unavailable

Serve = Callable[..., Any]


@function
def program(s: State) -> None:
    s += user("q")
    s += assistant("A: " + gen("a", logprobs=1))
    mark = s.mark()
    s += "forget me"
    s.rollback(mark)
    forks = s.fork(3)
    forks += lambda i: user(f"tip {i} 漢字 👩‍👩‍👧")
    forks += assistant(gen("tip"))
    with s.gap(tool="t", expected_s=1.0):
        pass
    forks.join()
    s += user("?") + assistant(select("c", ["yes", "no"]))


def test_a_program_runs_the_same_in_process_and_over_http(serve: Serve, native_handler: Any) -> None:
    def script(prompt: Any) -> str:
        return "reply 漢" + prompt.text[-30:].replace("\n", "")[:5]

    here, there = ScriptedClient(script, prefer={"no": 2.0}), ScriptedClient(script, prefer={"no": 2.0})
    local = program.run(backend=here)
    endpoint = RuntimeEndpoint(serve(native_handler(there)).url)
    remote = program.run(backend=endpoint)
    assert remote.text() == local.text()
    assert remote.messages() == local.messages()
    assert {n: remote[n] for n in ("a", "tip", "c")} == {n: local[n] for n in ("a", "tip", "c")}
    assert remote.usage == local.usage
    assert remote.get_meta_info("a") == local.get_meta_info("a")
    assert there.gaps == here.gaps and there.sent == here.sent
    assert there.branches == here.branches == {}


def test_streams_over_http(serve: Serve, native_handler: Any) -> None:
    endpoint = RuntimeEndpoint(serve(native_handler(ScriptedClient("abc", delay_s=0.01))).url)

    @function
    def plain(s: State) -> None:
        s += user("q") + assistant(gen("a")) + user("r")

    state = plain.run(backend=endpoint, stream=True)
    assert "".join(state.text_iter()) == state.text()
    assert list(state.text_iter("a")) == ["a", "b", "c"]


def test_connections_are_reused(serve: Serve, native_handler: Any) -> None:
    server = serve(native_handler(ScriptedClient("abc")))
    endpoint = RuntimeEndpoint(server.url)
    for _ in range(5):
        program.run(backend=endpoint)
    assert server.num_connections <= 4  # three forks side by side, and one to spare


def test_servers_that_close_each_connection_are_fine(serve: Serve, native_handler: Any) -> None:
    endpoint = RuntimeEndpoint(serve(native_handler(ScriptedClient("abc")), keep_alive=False).url)
    for _ in range(3):
        assert program.run(backend=endpoint)["a"] == "abc"


def test_errors_keep_their_class_and_words(serve: Serve, native_handler: Any) -> None:
    @function
    def asks(s: State) -> None:
        s += gen("x")

    for error in (TimedOut("too slow"), EngineFailed("broken"), BadRequest(expected="x", got="y", at="$.z")):
        endpoint = RuntimeEndpoint(serve(native_handler(ScriptedClient([error]))).url)
        with pytest.raises(type(error), match=str(error)[:8]):
            asks.run(backend=endpoint)


def test_a_verb_that_is_refused_raises(serve: Serve) -> None:
    async def nothing(method: str, path: str, body: bytes) -> object:
        raise NotFound("no such thing")

    with pytest.raises(NotFound, match="no such thing"):
        RuntimeEndpoint(serve(nothing).url).ready()


def test_an_answer_that_is_something_else_says_so(serve: Serve) -> None:
    async def chatter(method: str, path: str, body: bytes) -> object:
        return {"hello": "there"}

    with pytest.raises(EngineFailed, match="something else"):
        RuntimeEndpoint(serve(chatter).url).ready()


def test_cancelling_closes_the_stream_and_the_server_aborts(serve: Serve, native_handler: Any) -> None:
    client = ScriptedClient("slow" * 1000, delay_s=0.01)
    endpoint = RuntimeEndpoint(serve(native_handler(client)).url)

    @function
    def slow(s: State) -> None:
        s += gen("x", max_tokens=4000)

    with pytest.raises(TimedOut):
        slow.run(backend=endpoint, timeout=0.2)
    deadline = time.monotonic() + 5
    while client.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert client.running == 0 and client.aborted == 1 and client.branches == {}


def test_nobody_there() -> None:
    with pytest.raises(Unavailable, match="nobody answers"):
        RuntimeEndpoint("http://127.0.0.1:9", wait_s=0).ready()
    with pytest.raises(BadRequest, match="http"):
        HttpClient("ftp://host")
    with pytest.raises(NotBuilt):
        RuntimeEndpoint("http://127.0.0.1:9", chat_template_name="x")


def still_loading(handler: Any, num_refusals: float, status: str = "loading") -> Any:
    """A server whose engine takes so many requests to load."""
    asked: list[str] = []

    async def handle(method: str, path: str, body: bytes) -> Any:
        if path == "/ready":
            return {"status": status, "loading": {"bytes_done": 2e6, "bytes_total": 9e6}}
        asked.append(path)
        if len(asked) <= num_refusals:
            raise Unavailable(f"the engine is {status}", retry_after_s=2)
        return await handler(method, path, body)

    return handle


def test_a_server_that_still_loads_is_waited_for(
    serve: Serve, native_handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(still_loading(native_handler(ScriptedClient("abc")), 3)).url
    assert program.run(backend=RuntimeEndpoint(url))["a"] == "abc"
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for {url}: the engine is loading (2 of 9 MB)"
    ]


def test_a_server_that_never_gets_ready_is_told_with_its_state(serve: Serve, native_handler: Any) -> None:
    url = serve(still_loading(native_handler(ScriptedClient()), math.inf)).url
    with pytest.raises(Unavailable, match=r"not ready after \d+ s: the engine is loading \(2 of 9 MB\).*wait_s"):
        RuntimeEndpoint(url, wait_s=0.3).ready()


def test_an_engine_that_is_gone_is_not_waited_for(serve: Serve, native_handler: Any) -> None:
    url = serve(still_loading(native_handler(ScriptedClient()), math.inf, "failed")).url
    began = time.monotonic()
    with pytest.raises(Unavailable, match="the engine is failed"):
        RuntimeEndpoint(url).ready()
    assert time.monotonic() - began < 5


def test_a_server_that_opens_its_port_later_is_waited_for(serve: Serve, native_handler: Any) -> None:
    server = serve(native_handler(ScriptedClient()))
    PROGRAMS.start(server.open_again_after(0.5)).result(5)
    assert RuntimeEndpoint(server.url).ready().name == "scripted"


def test_engine_verbs(serve: Serve, native_handler: Any) -> None:
    endpoint = RuntimeEndpoint(serve(native_handler(ScriptedClient())).url)
    assert endpoint.ready().name == "scripted"
    assert endpoint.flush_cache() == 0 and ramet.flush_cache(endpoint) == 0
    assert endpoint.statistics().num_running == 0
    endpoint.close()
