"""A program's words without an engine, and a run's branches as a drawing."""

from collections.abc import Callable

from ramet import AsyncState, State, assistant, function, gen, select, show_tree, system, user
from ramet.lang.backends.scripted import Scripted
from ramet.runtime.errors import EngineFailed

Make = Callable[..., Scripted]


@function
def tips(s: State, topic: str, n: int = 2) -> None:
    s += system("Be brief.")
    s += user(f"Tips on {topic}.")
    forks = s.fork(n)
    forks += lambda i: assistant(f"{i}. " + gen("tip", max_tokens=8))
    forks.join()
    mark = s.mark()
    s += "Best: " + select("best", ["0", "1"])
    s.rollback(mark)
    with s.var_scope("end"):
        s += f"So: {s['tip'][0]}"


def test_trace_prints_the_program() -> None:
    assert repr(tips.trace()) == (
        "@function\n"
        "def tips(s, topic, n):\n"
        "    s += system('Be brief.')\n"
        "    s += user('Tips on {topic}.')\n"
        "    forks = s.fork(2)\n"
        "    forks[0] += assistant('0. ' + gen('tip', max_tokens=8))\n"
        "    forks[1] += assistant('1. ' + gen('tip', max_tokens=8))\n"
        "    forks.join('gather_variable')\n"
        "    s.mark()\n"
        "    s += 'Best: ' + select('best', ['0', '1'])\n"
        "    s.rollback()\n"
        "    s += var_scope_begin('end')\n"
        "    s += 'So: {tip}'\n"
        "    s += var_scope_end('end')"
    )


def test_trace_takes_arguments_and_async_programs() -> None:
    @function
    async def program(s: AsyncState, q: str) -> None:
        s += q
        s += gen("a")
        s += f"{await s['a']}!"

    assert "s += 'why?'" in repr(program.trace(q="why?"))
    assert "s += '{a}!'" in repr(program.trace())
    assert len(program.trace(q="x").nodes) == 3


def test_trace_of_text_and_messages() -> None:
    @function
    def program(s: State) -> None:
        s += user("q") + assistant(gen("a"))
        s["text"] = s.text()
        s["last"] = s.messages()[-1]["content"]
        s.fork(2).join("concate_and_append")

    trace = program.trace()
    assert trace.root.slot("last").value.result() == "{a}"


def test_tree_shows_branches_turns_and_tokens(scripted: Make) -> None:
    state = tips.run("bees", 3, backend=scripted("abc"))
    lines = show_tree(state).splitlines()
    assert lines[0].startswith("tips  prompt ") and "cached" in lines[0]
    assert "├─ fork 3" in lines[1]
    assert [line for line in lines if "● tip" in line and "'abc'" in line] and "◆ best" in lines[-1]
    assert state.tree() == show_tree(state)


def test_tree_shows_what_failed(scripted: Make) -> None:
    @function
    def program(s: State) -> str:
        forks = s.fork(2)
        forks[0] += gen("x")
        assert forks[0].error() is not None
        return s.tree()

    assert "✗ EngineFailed" in program.run(backend=scripted([EngineFailed("no")])).ret_value


def test_repr_of_states_and_programs(scripted: Make) -> None:
    assert repr(tips) == "<program tips(s, topic, n)>"
    assert repr(tips.run("x", backend=scripted())) == "<State of tips: 1 turns, variables ['end', 'tip']>"
