"""Text as it comes: of one variable or all, sync and async, in the program and outside of it."""

import time
from collections.abc import Callable

import ramet
from ramet import AsyncState, State, assistant, function, gen, user
from ramet.lang.backends.scripted import Scripted

Make = Callable[..., Scripted]


@function
def chat(s: State) -> None:
    s += user("q")
    s += assistant("A: " + gen("one"))
    s += user("more")
    s += assistant(gen("two"))


def test_the_whole_text_streams_piece_by_piece_and_adds_up(scripted: Make) -> None:
    state = chat.run(backend=scripted(["abc", "xyz"], delay_s=0.01), stream=True)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text()
    assert {"a", "b", "c", "x", "y", "z"} <= set(pieces)


def test_pieces_come_while_the_program_runs(scripted: Make) -> None:
    state = chat.run(backend=scripted("abcdefgh", delay_s=0.05), stream=True)
    started = time.monotonic()
    next(state.text_iter("one"))
    assert time.monotonic() - started < 0.05 * 6
    state.sync()


def test_stream_is_an_iterator_of_the_text(scripted: Make) -> None:
    stream = chat.stream(backend=scripted("abc"))
    assert "".join(stream) == stream.state.text()
    assert stream.state["two"] == "abc"


async def test_async_readers_in_any_loop(scripted: Make) -> None:
    state = chat.run(backend=scripted(["abc", "xyz"], delay_s=0.01), stream=True)
    whole = [piece async for piece in state.text_async_iter()]
    one = [piece async for piece in state.text_async_iter("one")]
    two = [piece async for piece in state.text_async_iter("two", return_meta_data=True)]
    assert "".join(whole) == state.text() and one == ["a", "b", "c"]
    assert [piece for piece, _ in two] == ["x", "y", "z", ""]
    assert two[-1][1]["completion_tokens"] == 3


def test_in_the_body_the_iterator_ends_with_what_was_said_so_far(scripted: Make) -> None:
    @function
    def program(s: State) -> list[str]:
        s += "q: " + gen("x")
        seen = ["".join(s.text_iter())]
        s += " " + gen("y")
        seen.append("".join(s.text_iter("y")))
        seen.append("".join(s.text_iter()))
        return seen

    assert program.run(backend=scripted("abc")).ret_value == ["q: abc", "abc", "q: abc abc"]


def test_an_ended_run_gives_its_text_at_once(scripted: Make) -> None:
    state = chat.run(backend=scripted("abc"))
    assert list(state.text_iter()) == [state.text()]


def test_after_a_rollback_the_stream_goes_on_behind_the_mark(scripted: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "start "
        mark = s.mark()
        s += gen("x") + "|"
        s.sync()
        s.rollback(mark)
        s += gen("x")

    state = program.run(backend=scripted(["bad", "good"]), stream=True)
    assert "".join(state.text_iter()) == "start bad|good"
    assert state.text() == "start good"


def test_forks_of_a_streamed_run_stream_too(scripted: Make) -> None:
    @function
    def program(s: State) -> object:
        s += "q "
        forks = s.fork(2)
        forks += gen("x")
        return ["".join(f.text_iter()) for f in forks]

    state = program.run(backend=scripted(["ab", "cd"]), stream=True)
    "".join(state.text_iter())
    assert sorted(state.ret_value) == ["q ab", "q cd"]


async def test_async_program_reads_its_own_stream(scripted: Make) -> None:
    @function
    async def program(s: AsyncState) -> str:
        s += gen("x")
        return "".join([piece async for piece in s.text_iter("x")])

    assert (await program.arun(backend=scripted("abc"))).ret_value == "abc"


def test_stop_reading_does_not_stop_the_program(scripted: Make) -> None:
    state = chat.run(backend=scripted("abc", delay_s=0.01), stream=True)
    for _ in state.text_iter():
        break
    state.sync()
    assert ramet.show_tree(state).startswith("chat")
    assert state["two"] == "abc"
