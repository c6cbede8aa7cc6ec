"""Programs run: texts, turns, variables, forks and joins, alone and streamed, sync and async."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import ramet
from ramet import AsyncState, State, assistant, function, gen, select, system, user
from ramet.lang.backends.scripted import Prompt, Scripted
from ramet.runtime.errors import BadRequest

Make = Callable[..., Scripted]


@function
def chat(s: State, first: str, second: str = "and then?") -> str:
    s += system("Be brief.")
    s += user(first)
    s += assistant(gen("one"))
    s += user(second)
    s += assistant("Well, " + gen("two", stop="\n"))
    return str(s["two"])


def test_chat_text_messages_variables(scripted: Make) -> None:
    state = chat.run("hello", backend=scripted(["hi", "bye\nx"]))
    assert state["one"] == "hi" and state["two"] == "bye" and state.ret_value == "bye"
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "and then?"},
        {"role": "assistant", "content": "Well, bye"},
    ]
    assert state.text() == "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in state.messages())


def test_roles_in_all_forms_say_the_same(scripted: Make) -> None:
    @function
    def with_blocks(s: State) -> None:
        with s.system():
            s += "Be brief."
        s.user("hello")
        with s.assistant():
            s += "Well, "
            s += gen("a")

    @function
    def with_begin_and_end(s: State) -> None:
        s += ramet.system_begin() + "Be brief." + ramet.system_end()
        s += [ramet.user_begin(), "hello", ramet.user_end()]
        s += ramet.assistant_begin()
        s += "Well, " + gen("a")
        s += ramet.assistant_end()

    @function
    def with_words(s: State) -> None:
        s += system("Be brief.") + user("hello") + assistant(["Well, ", gen("a")])

    texts = {program.run(backend=scripted("yes")).text() for program in (with_blocks, with_begin_and_end, with_words)}
    assert len(texts) == 1


def test_literals_between_two_generations_travel_together(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        for word in ["a", "b", "c"]:
            s += word
        s += gen("x")

    backend = scripted("!")
    assert program.run(backend=backend).text() == "abc!"
    assert backend.client.calls.count("extend") == 1


def test_fork_sends_no_text_and_no_request(scripted: Make) -> None:
    backend = scripted("ok")
    sent: list[int] = []

    @function
    def program(s: State) -> None:
        s += "x" * 10_000
        s += gen("a")
        s.sync()
        sent.append(backend.client.sent)
        forks = s.fork(8)
        forks[7].sync()
        sent.append(backend.client.sent)
        assert backend.client.calls[-1] == "fork"

    program.run(backend=backend)
    assert sent[0] == sent[1]


def test_fork_before_any_text(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        forks = s.fork(3)
        forks += lambda i: f"{i}:"
        forks += gen("x")
        forks.join()

    assert program.run(backend=scripted(["a", "b", "c"]))["x"] == ["a", "b", "c"]


def test_branches_run_side_by_side(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        forks = s.fork(10)
        forks += gen("x")
        forks.join()

    started = time.monotonic()
    program.run(backend=scripted("abcde", delay_s=0.02), stream=False)
    assert time.monotonic() - started < 0.02 * 5 * 10 / 2


def test_saying_returns_at_once_and_asking_waits(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        started = time.monotonic()
        s += gen("x", max_tokens=5)
        said = time.monotonic() - started
        assert s["x"] == "abcde"
        assert said < (time.monotonic() - started) / 2

    program.run(backend=scripted("abcde", delay_s=0.05))


def test_a_child_sees_what_was_said_before_it_and_nothing_after(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("before")
        child = s.copy()
        s += gen("after")
        child += gen("own")
        assert child["before"] == "r" and child["own"] == "r"
        assert "after" not in child and "own" not in s and "after" in s
        with pytest.raises(KeyError):
            child["after"]

    program.run(backend=scripted("r"))


def test_fork_inside_an_open_turn(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += user("q")
        with s.assistant():
            s += "A: "
            forks = s.fork(2)
            forks += lambda i: gen("x")
            forks.join()
            s += forks[0]["x"] + " and " + forks[1]["x"]

    state = program.run(backend=scripted(["one", "two"]))
    assert state.messages()[-1] == {"role": "assistant", "content": "A: one and two"}
    assert state.text().endswith("<|im_start|>assistant\nA: one and two<|im_end|>\n")


def test_join_appends_what_the_branches_said(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += user("q")
        forks = s.fork(2)
        forks += lambda i: user(f"part {i}")
        forks += assistant(gen("x"))
        forks.join("concate_and_append")
        s += user("all?") + assistant(gen("y"))

    state = program.run(backend=scripted(lambda p: "first" if "part 0" in p.text else "second"))
    assert [m["content"] for m in state.messages()] == ["q", "part 0", "first", "part 1", "second", "all?", "first"]
    assert "x" not in state


def test_join_gathers_only_what_is_new(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s["topic"] = "bees"
        forks = s.fork(2)
        forks[0] += gen("a") + gen("b")
        forks[1] += gen("a")
        forks.join()

    state = program.run(backend=scripted(["1"]))
    assert (state["a"], state["b"], state["topic"]) == (["1", "1"], ["1"], "bees")


def test_first_k_cancels_the_rest_and_frees_it(scripted: Make) -> None:
    def rule(prompt: Prompt) -> str:
        return "fast" if prompt.text.endswith("2") else "slow" * 1000

    backend = scripted(rule, delay_s=0.01)

    @function
    def program(s: State) -> str:
        forks = s.fork(4)
        forks += lambda i: f"{i}"
        forks += gen("x", max_tokens=4000)
        (winner,) = forks.first(1)
        assert backend.client.running == 0 and backend.client.aborted == 3
        assert len(backend.client.branches) == 2  # the source and the winner
        return str(winner["x"])

    started = time.monotonic()
    assert program.run(backend=backend).ret_value == "fast"
    assert time.monotonic() - started < 5


def test_first_k_that_please(scripted: Make) -> None:
    @function
    def program(s: State) -> list[str]:
        forks = s.fork(4)
        forks += lambda i: f"{i}"
        forks += gen("x")
        return [str(f["x"]) for f in forks.first(2, where=lambda f: int(f["x"]) % 2 == 1)]

    assert sorted(program.run(backend=scripted(lambda p: p.text[-1])).ret_value) == ["1", "3"]


def test_mark_and_rollback(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += user("q")
        mark = s.mark()
        attempts = 1
        s += assistant(gen("x"))
        while s["x"] != "good":
            s.rollback(mark)
            assert "x" not in s
            s += assistant(gen("x"))
            attempts += 1
        s["attempts"] = attempts

    state = program.run(backend=scripted(["bad", "worse", "good"]))
    assert state["attempts"] == 3
    assert state.messages() == [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}]
    assert state.text() == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\ngood<|im_end|>\n"
    assert state.usage.completion_tokens == len("bad" + "worse" + "good")


def test_var_scope_binds_what_was_said_inside(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "before "
        with s.var_scope("line"):
            s += "x = " + gen("v") + ";"
        s += " after"

    assert program.run(backend=scripted("3"))["line"] == "x = 3;"


def test_select_picks_appends_and_explains(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "Capital: " + select("c", ["Paris", "Rome"]) + "."

    state = program.run(backend=scripted(prefer={"Rome": 3.0}))
    assert state["c"] == "Rome" and state.text() == "Capital: Rome."
    info = state.get_meta_info("c")
    assert info["decision"] == "Rome" and info["probabilities"] == [0.25, 0.75]


def test_n_samples_are_a_list_and_the_branch_goes_on_with_the_first(scripted: Make) -> None:
    seen: list[Any] = []

    def rule(prompt: Prompt) -> str:
        seen.append(prompt.spec.sampling.seed)
        return f"r{prompt.spec.sampling.seed}"

    @function
    def program(s: State) -> None:
        s += "q " + gen("x", n=3, seed=7)

    state = program.run(backend=scripted(rule))
    assert state["x"] == ["r7", "r8", "r9"] and state.text() == "q r7"
    assert state.usage.completion_tokens == 6


def test_unnamed_gen_is_text_only(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "a" + gen(max_tokens=2) + "b"

    assert program.run(backend=scripted("xyz")).text() == "axyb"


def test_run_options_are_defaults_of_every_gen(scripted: Make) -> None:
    specs: list[Any] = []

    def rule(prompt: Prompt) -> str:
        specs.append(prompt.spec)
        return "ok"

    @function
    def program(s: State) -> None:
        s += gen("a") + gen("b", temperature=0.5, max_tokens=7)

    program.run(backend=scripted(rule), temperature=0, max_new_tokens=3, stop=["\n"], top_k=5)
    assert [(s.max_tokens, s.sampling.temperature, s.stop, s.sampling.top_k) for s in specs] == [
        (3, 0, ("\n",), 5),
        (7, 0.5, ("\n",), 5),
    ]


def test_a_name_of_the_program_is_the_programs(scripted: Make) -> None:
    @function
    def program(s: State, stop: str) -> None:
        s += stop + gen("a")

    assert program.run(stop="now", backend=scripted("!")).text() == "now!"


def test_unknown_arguments_are_refused_by_name(scripted: Make) -> None:
    with pytest.raises(BadRequest, match="tempreature"):
        chat.run("hi", tempreature=0.1, backend=scripted())
    with pytest.raises(BadRequest, match="missing"):
        chat.run(backend=scripted())


def test_bind_gives_arguments_in_advance(scripted: Make) -> None:
    bound = chat.bind(second="why?")
    assert bound.run("hi", backend=scripted("r")).messages()[3]["content"] == "why?"
    with pytest.raises(BadRequest):
        chat.bind(third="x")


def test_a_program_inside_a_state_runs_in_its_branch(scripted: Make) -> None:
    @function
    def part(s: State, name: str) -> str:
        s += f"{name}=" + gen(name) + ";"
        return name

    @function
    def whole(s: State) -> None:
        assert part(s, "a") == "a"
        part(s, "b")

    assert whole.run(backend=scripted(["1", "2"])).text() == "a=1;b=2;"


def test_a_program_run_inside_another_is_its_child(scripted: Make) -> None:
    backend = scripted("x")

    @function
    def inner(s: State) -> None:
        s += gen("a")

    @function
    def outer(s: State) -> None:
        s += gen("b")
        s["inner"] = inner.run()["a"]  # the backend is inherited

    state = outer.run(backend=backend, tenant="t", priority=3)
    parents = [spec.parent for spec in backend.client.programs.values()]
    assert parents == [None, state.program_id]
    assert {(spec.tenant, spec.priority) for spec in backend.client.programs.values()} == {("t", 3)}


def test_usage_counts_each_token_once_and_what_was_cached(scripted: Make) -> None:
    state = chat.run("hello", backend=scripted("hi"))
    usage = state.usage
    assert usage.completion_tokens == 4
    assert usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens + len("<|im_end|>\n") == len(
        state.text()
    )


def test_gap_tells_the_engine(scripted: Make) -> None:
    backend = scripted("x")

    @function
    def program(s: State) -> None:
        s += gen("a")
        with s.gap(tool="search", expected_s=2.5):
            pass
        with s.gap(kind="human"):
            pass
        s.fork(2).join()

    program.run(backend=backend)
    assert backend.client.gaps == [("tool", "search", 2.5), ("human", None, None), ("join", None, None)]


async def test_async_program(scripted: Make) -> None:
    @function
    async def program(s: AsyncState, topic: str) -> str:
        s += user(topic) + assistant(gen("a"))
        assert await s["a"] == "r"
        forks = s.fork(2)
        forks += gen("b")
        await forks.join()
        mark = s.mark()
        s += gen("c")
        assert await s.get("c", str) == "r"
        s.rollback(mark)
        assert [m["role"] for m in await s.messages()] == ["user", "assistant"]
        return f"{await s['b']}"

    state = await program.arun("bees", backend=scripted("r"))
    assert state.ret_value == "['r', 'r']" and state["b"] == ["r", "r"]


def test_async_program_run_from_sync_code(scripted: Make) -> None:
    @function
    async def program(s: AsyncState) -> str:
        s += gen("a")
        await asyncio.sleep(0)
        return str(await s["a"])

    assert program.run(backend=scripted("r")).ret_value == "r"
    assert [s["a"] for s in program.run_batch([{}, {}], backend=scripted("r"))] == ["r", "r"]


async def test_sync_program_run_from_async_code_holds_nobody_up(scripted: Make) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    states = await asyncio.gather(*(chat.arun("hi", backend=scripted("abc", delay_s=0.1)) for _ in range(5)))
    ticking.cancel()
    assert [s["one"] for s in states] == ["abc"] * 5 and ticks > 3


def test_values_in_async_programs_say_that_they_are_awaited(scripted: Make) -> None:
    @function
    async def program(s: AsyncState) -> None:
        s += gen("a")
        with pytest.raises(BadRequest, match="await"):
            f"{s['a']}"
        await s.sync()

    program.run(backend=scripted("r"))


def test_hundred_programs_in_threads_share_one_backend(scripted: Make) -> None:
    backend = scripted(lambda p: p.text[-20:-15])
    results: list[str] = []

    def work(i: int) -> None:
        results.append(str(chat.run(f"{i:05d}", backend=backend)["one"]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 100


def test_default_backend(scripted: Make) -> None:
    backend = scripted("d")
    ramet.set_default_backend(backend)
    try:
        assert chat.run("q")["one"] == "d"
        assert ramet.get_default_backend() is backend
    finally:
        ramet.set_default_backend(None)


def test_a_raw_engine_client_is_a_backend(scripted: Make) -> None:
    assert chat.run("q", backend=scripted("d").client)["one"] == "d"
    with pytest.raises(BadRequest, match="RuntimeEndpoint"):
        chat.run("q", backend="http://localhost")


async def test_async_forks_first_that_please(scripted: Make) -> None:
    async def is_odd(state: AsyncState) -> bool:
        return int(await state["x"]) % 2 == 1

    @function
    async def program(s: AsyncState) -> list[str]:
        forks = s.fork(4)
        forks += lambda i: f"{i}"
        forks += gen("x")
        return sorted([str(await f["x"]) for f in await forks.first(2, where=is_odd)])

    assert (await program.arun(backend=scripted(lambda p: p.text[-1]))).ret_value == ["1", "3"]


async def test_run_of_an_async_program_where_a_loop_runs_already(scripted: Make) -> None:
    @function
    async def program(s: AsyncState) -> str:
        s += gen("x")
        return str(await s["x"])

    assert program.run(backend=scripted("r")).ret_value == "r"


def test_threads_of_a_streamed_body_may_ask(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x")
        seen: list[str] = []
        thread = threading.Thread(target=lambda: seen.append(s.text() + str(s["x"])))
        thread.start()
        thread.join()
        s["seen"] = seen

    state = program.run(backend=scripted("r"), stream=True)
    assert state["seen"] == ["rr"] and state.text() == "r"


def test_programs_run_in_a_forked_process() -> None:
    code = """
import os
from ramet import Scripted, function, gen

@function
def program(s):
    s += gen("x")

program.run(backend=Scripted("r"))
child = os.fork()
if child == 0:
    os._exit(0 if program.run(backend=Scripted("r"))["x"] == "r" else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", code], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_children_are_forgotten_when_they_end(scripted: Make) -> None:
    @function
    def inner(s: State) -> None:
        s += gen("a")

    @function
    def outer(s: State) -> None:
        for _ in range(3):
            inner.run()
        assert s.branch.run.children == set()

    outer.run(backend=scripted("x"))
