"""What goes wrong is raised at the first use of the branch it went wrong in, with the program's own line; the rest
goes on."""

import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable

import pytest

from ramet import State, function, gen, user
from ramet.lang.backends.scripted import Prompt, Scripted
from ramet.runtime.errors import BadRequest, Cancelled, EngineFailed, TimedOut

Make = Callable[..., Scripted]


def fails_on(marker: str) -> Callable[[Prompt], str | Exception]:
    return lambda prompt: EngineFailed("no more") if marker in prompt.text else "fine"


def notes(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_unknown_names_list_the_known_ones(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("answer")
        s["anser"]

    with pytest.raises(KeyError, match="answer") as caught:
        program.run(backend=scripted())
    assert isinstance(caught.value, BadRequest) and "anser" in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "2"], ids=repr)
def test_fork_of_none(scripted: Make, size: object) -> None:
    @function
    def program(s: State) -> None:
        s.fork(size)  # type: ignore[arg-type]

    with pytest.raises(BadRequest, match="1 or more branches"):
        program.run(backend=scripted())


@pytest.mark.parametrize("spoken", [None, 3, object(), {"a": 1}], ids=repr)
def test_what_can_not_be_said(scripted: Make, spoken: object) -> None:
    @function
    def program(s: State) -> None:
        s += spoken  # type: ignore[arg-type]

    with pytest.raises(BadRequest, match="expression"):
        program.run(backend=scripted())


def test_roles_do_not_nest_and_end_what_began(scripted: Make) -> None:
    @function
    def nested(s: State) -> None:
        with s.user():
            s += user("inner")

    @function
    def unbalanced(s: State) -> None:
        from ramet import assistant_end

        s += assistant_end()

    for program, text in ((nested, "can't hold another"), (unbalanced, "no message is open")):
        with pytest.raises(BadRequest, match=text):
            program.run(backend=scripted())


def test_error_in_one_of_three_forks_is_raised_at_its_first_use(scripted: Make) -> None:
    """bugs.md row 38."""

    @function
    def program(s: State) -> list[str]:
        forks = s.fork(3)
        forks += lambda i: f"branch {i} "
        forks += gen("x")
        assert forks[0]["x"] == "fine" and forks[2]["x"] == "fine"
        with pytest.raises(EngineFailed) as caught:
            forks[1]["x"]
        shown = notes(caught.value)
        assert "gen('x')" in shown and __file__ in shown and "in program" in shown
        assert isinstance(forks[1].error(), EngineFailed) and forks[0].error() is None
        return [forks[0].text(), forks[2].text()]

    assert program.run(backend=scripted(fails_on("branch 1"))).ret_value == ["branch 0 fine", "branch 2 fine"]


def test_join_raises_the_branch_error_and_names_the_branch(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        forks = s.fork(3)
        forks += lambda i: f"branch {i} "
        forks += gen("x")
        forks.join()

    with pytest.raises(EngineFailed) as caught:
        program.run(backend=scripted(fails_on("branch 1")))
    assert "branch 1 of fork(3)" in notes(caught.value)


def test_error_of_the_only_branch_is_raised_by_run(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x")

    with pytest.raises(EngineFailed):
        program.run(backend=scripted([EngineFailed("no")]))


def test_error_that_nobody_asked_for_is_logged(scripted: Make, caplog: pytest.LogCaptureFixture) -> None:
    @function
    def program(s: State) -> None:
        forks = s.fork(2)
        forks += lambda i: f"branch {i} "
        forks += gen("x")

    with caplog.at_level(logging.WARNING, "ramet.lang"):
        program.run(backend=scripted(fails_on("branch 1")))
    assert "nobody asked" in caplog.text


def test_a_caught_error_is_not_raised_again(scripted: Make) -> None:
    @function
    def program(s: State) -> str:
        s += gen("x")
        try:
            return str(s["x"])
        except EngineFailed:
            return "went on"

    assert program.run(backend=scripted([EngineFailed("no")])).ret_value == "went on"


def test_exception_in_the_body_keeps_its_own_traceback_and_frees_everything(scripted: Make) -> None:
    backend = scripted("slow" * 100, delay_s=0.01)

    @function
    def program(s: State) -> None:
        forks = s.fork(3)
        forks += gen("x", max_tokens=400)
        time.sleep(0.03)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError) as caught:
        program.run(backend=backend)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename == __file__
    assert backend.client.running == 0 and backend.client.aborted == 3


def test_streamed_run_raises_the_body_error_where_it_is_read(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x")
        s.sync()
        raise ZeroDivisionError("mine")

    state = program.run(backend=scripted("abc"), stream=True)
    with pytest.raises(ZeroDivisionError):
        "".join(state.text_iter())
    with pytest.raises(ZeroDivisionError):
        state["x"]
    assert isinstance(state.error(), ZeroDivisionError)


def test_timeout_of_a_program_cancels_and_frees(scripted: Make) -> None:
    backend = scripted("slow" * 100, delay_s=0.01)

    @function
    def program(s: State) -> None:
        s += gen("x", max_tokens=400)
        s["x"]

    started = time.monotonic()
    with pytest.raises(TimedOut, match="program"):
        program.run(backend=backend, timeout=0.1)
    assert time.monotonic() - started < 2 and backend.client.aborted == 1


def test_keyboard_interrupt_cancels_and_frees(scripted: Make) -> None:
    backend = scripted("slow" * 100, delay_s=0.01)

    @function
    def program(s: State) -> None:
        s += gen("x", max_tokens=400)
        s["x"]

    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        program.run(backend=backend)
    assert backend.client.aborted == 1 and backend.client.branches == {}


async def test_cancelling_the_task_cancels_the_program(scripted: Make) -> None:
    import asyncio

    backend = scripted("slow" * 100, delay_s=0.01)

    @function
    def program(s: State) -> None:
        s += gen("x", max_tokens=400)

    @function
    async def other(s: State) -> None:
        s += gen("x", max_tokens=400)
        await s["x"]

    for p in (program, other):
        task = asyncio.create_task(p.arun(backend=backend))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.sleep(0.05)
    assert backend.client.aborted == 2 and backend.client.branches == {}


def test_a_program_that_ends_waits_for_what_it_said_and_closes(scripted: Make) -> None:
    backend = scripted("abc", delay_s=0.01)

    @function
    def program(s: State) -> object:
        forks = s.fork(2)
        forks += gen("x")
        return forks

    forks = program.run(backend=backend).ret_value
    assert [f["x"] for f in forks] == ["abc", "abc"] and [f.text() for f in forks] == ["abc", "abc"]
    with pytest.raises(BadRequest, match="ended"):
        forks[0] += "more"


def test_joined_branches_take_no_more(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        forks = s.fork(2)
        forks.join()
        with pytest.raises(BadRequest, match="joined"):
            forks[0] += "more"
        with pytest.raises(BadRequest, match="joined"):
            forks.join()

    program.run(backend=scripted())


def test_closing_a_branch_stops_it(scripted: Make) -> None:
    backend = scripted("slow" * 100, delay_s=0.01)

    @function
    def program(s: State) -> None:
        child = s.copy()
        child += gen("x", max_tokens=400)
        next(child.text_iter("x"))
        child.close()
        with pytest.raises(Cancelled):
            child["x"]
        with s.copy() as other:
            other += gen("y", max_tokens=2)
        assert other["y"] == "sl"

    program.run(backend=backend)
    assert backend.client.aborted == 1


def test_a_mark_of_another_branch_is_refused(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        mark = s.mark()
        s.copy().rollback(mark)

    with pytest.raises(BadRequest, match="another branch"):
        program.run(backend=scripted())


def test_a_type_that_does_not_fit_says_why(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("x", dtype=list[int], max_tokens=4)
        s["x"]

    with pytest.raises(BadRequest, match="max_tokens"):
        program.run(backend=scripted("[1, 2, 3]"))


def test_first_of_branches_that_all_fail_raises(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        forks = s.fork(2)
        forks += gen("x")
        forks.first(1)

    with pytest.raises(EngineFailed):
        program.run(backend=scripted([EngineFailed("no")]))


def test_waiting_on_the_loops_own_thread_is_refused(scripted: Make) -> None:
    from ramet import tool

    @function
    def inner(s: State) -> None:
        s += gen("x")

    @tool
    async def ask() -> str:
        """Ask."""
        return str(inner.run()["x"])

    @function
    def program(s: State) -> str:
        s += "<tool_call>\n" + gen("c") + "\n</tool_call>"
        (result,) = s.call_tools(ask)
        return result.text

    backend = scripted('{"name": "ask", "arguments": {}}')
    assert "arun" in program.run(backend=backend).ret_value
