"""Many runs: side by side, each with its own error, a file to go on from."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ramet import State, assistant, function, gen, user
from ramet.lang.backends.scripted import Prompt, Scripted
from ramet.runtime.errors import BadRequest

Make = Callable[..., Scripted]


def echo(prompt: Prompt) -> str:
    return f"<{prompt.text[-1]}>"


@function
def program(s: State, x: str) -> str:
    s += f"{x}" + gen("y")
    y = str(s["y"])
    if x == "7":
        raise ZeroDivisionError("item 7")
    return y


def test_items_by_name_or_position_in_order(scripted: Make) -> None:
    backend = scripted(echo)
    for batch in ([{"x": c} for c in "abc"], [(c,) for c in "abc"], [[c] for c in "abc"]):
        assert [s["y"] for s in program.run_batch(batch, backend=backend)] == ["<a>", "<b>", "<c>"]
    with pytest.raises(BadRequest, match=r"batch\[0\]"):
        program.run_batch(["a"], backend=backend)
    with pytest.raises(BadRequest, match="num_threads"):
        program.run_batch([("a",)], num_threads=0, backend=backend)


def test_item_7_of_20_fails_and_the_others_finish(scripted: Make) -> None:
    """bugs.md row 38."""
    states = program.run_batch([{"x": str(i)} for i in range(20)], num_threads=4, backend=scripted(echo))
    assert [s.error() is None for s in states] == [i != 7 for i in range(20)]
    assert [s["y"] for i, s in enumerate(states) if i != 7] == [f"<{str(i)[-1]}>" for i in range(20) if i != 7]
    with pytest.raises(ZeroDivisionError, match="item 7") as caught:
        states[7]["y"]
    frames = []
    trace = caught.value.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert __file__ in frames


def test_threads_share_the_work(scripted: Make) -> None:
    backend = scripted("ab", delay_s=0.05)
    started = time.monotonic()
    program.run_batch([(c,) for c in "abcdefgh"], num_threads=8, backend=backend)
    assert time.monotonic() - started < 0.1 * 8 / 2


def test_progress_bar(scripted: Make, capsys: pytest.CaptureFixture[str]) -> None:
    program.run_batch([(c,) for c in "67"], progress_bar=True, backend=scripted(echo))
    shown = capsys.readouterr().err
    assert "2/2" in shown and "1 failed" in shown


def test_generator_style_gives_states_as_they_come(scripted: Make) -> None:
    states = program.run_batch([(c,) for c in "abc"], generator_style=True, backend=scripted(echo))
    assert isinstance(states, Iterator)
    assert next(states)["y"] == "<a>" and [s["y"] for s in states] == ["<b>", "<c>"]


@function
def chat(s: State, q: str) -> dict[str, int]:
    s += user(q) + assistant(gen("a"))
    s["n"] = [1, {"k": 2}]
    return {"size": len(s["a"])}


def test_resume_does_not_do_again_what_is_done(scripted: Make, tmp_path: Path) -> None:
    file = str(tmp_path / "out.jsonl")
    first, second = scripted(["aa"]), scripted(["zz"])
    batch = [("one",), ("two",)]
    before = chat.run_batch(batch, resume=file, backend=first)
    after = chat.run_batch([*batch, ("three",)], resume=file, backend=second)
    assert second.client.calls.count("generate") == 1
    assert [s["a"] for s in after] == ["aa", "aa", "zz"]
    assert after[0].messages() == before[0].messages() and after[0].text() == before[0].text()
    assert after[0]["n"] == [1, {"k": 2}] and after[0].ret_value == {"size": 2}
    assert "".join(after[1].text_iter()) == before[1].text() and after[1].error() is None


def test_resume_tries_failed_and_changed_items_again_and_survives_a_torn_line(scripted: Make, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    batch = [(c,) for c in "678"]
    program.run_batch(batch, resume=str(file), backend=scripted(echo), num_threads=1)
    assert len(file.read_text().splitlines()) == 2
    lines = file.read_text().splitlines()
    file.write_text(lines[0] + "\n" + lines[1][:20])
    again = scripted(echo)
    program.run_batch([("9",), *batch[1:]], resume=str(file), backend=again)
    assert again.client.calls.count("generate") == 3  # changed, failed, torn
    whole = [json.loads(line)["item"] for line in file.read_text().splitlines() if line.endswith("}")]
    assert len(whole) == 3  # what was done before, and the two that succeeded now


def test_ctrl_c_cancels_what_runs(scripted: Make) -> None:
    backend = scripted("slow" * 200, delay_s=0.01)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        program.run_batch([(c,) for c in "abcdefgh"], num_threads=4, max_tokens=800, backend=backend)
    deadline = time.monotonic() + 5
    while (backend.client.running or backend.client.branches) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert backend.client.running == 0
