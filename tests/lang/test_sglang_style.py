"""Programs written for SGLang's frontend: only the import line is ours. Words, positions and results."""

import asyncio
from typing import Any

import pytest

import ramet as sgl
from ramet.lang.backends.scripted import Prompt, ScriptedClient


@pytest.fixture
def backend(empties: Any) -> Any:
    client = ScriptedClient(lambda prompt: f"r{prompt.number}", prefer={"calculator": 2.0})
    sgl.set_default_backend(client)
    yield client
    sgl.set_default_backend(None)
    empties(client)


def test_chat_with_roles_and_positions(backend: ScriptedClient) -> None:
    @sgl.function
    def questions(s, first, second):  # type: ignore[no-untyped-def]
        s += sgl.system("You are a helpful assistant.")
        s += sgl.user(first)
        s += sgl.assistant(sgl.gen("one", 64))
        s += sgl.user_begin()
        s += second
        s += sgl.user_end()
        s += sgl.assistant_begin() + sgl.gen("two", max_tokens=64, stop=["."]) + sgl.assistant_end()

    state = questions.run(first="Who?", second="Why?", temperature=0.1, max_new_tokens=32)
    assert [m["role"] for m in state.messages()] == ["system", "user", "assistant", "user", "assistant"]
    assert (state["one"], state["two"]) == ("r0", "r1")
    assert questions(first="Who?", second="Why?")["one"] == "r2"


def test_streaming(backend: ScriptedClient) -> None:
    @sgl.function
    def qa(s, q):  # type: ignore[no-untyped-def]
        s += "Q: " + q + "\n" + "A:" + sgl.gen("a")

    state = qa.run(q="?", stream=True)
    assert "".join(state.text_iter()) == "Q: ?\nA:r0"

    async def read() -> tuple[str, list[Any]]:
        state = qa.run(q="?", stream=True)
        text = "".join([out async for out in state.text_async_iter(var_name="a")])
        state = qa.run(q="?", stream=True)
        return text, [meta async for _, meta in state.text_async_iter("a", return_meta_data=True)]

    text, metas = asyncio.run(read())
    assert text == "r1" and metas[-1]["finish_reason"]["type"] == "stop"


def test_forks_before_and_after_text(backend: ScriptedClient) -> None:
    @sgl.function
    def program(s):  # type: ignore[no-untyped-def]
        f = s.fork(2)
        f[0] += "a" + sgl.gen("x")
        f[1] += "b" + sgl.gen("x")
        f.join()
        s += "Tips: 1. one 2. two\n"
        forks = s.fork(2)
        for i, each in enumerate(forks):
            each += f"Tip {i}: "
            each += sgl.gen("tip", max_tokens=8)
        s += "1." + forks[0]["tip"] + "\n2." + forks[1]["tip"]
        pair = s.fork(2)
        pair += [f" p{i}" for i in range(2)]
        pair += lambda i: sgl.gen(f"v{i}")
        pair.join(mode="concate_and_append")
        with s.copy() as other:
            other += sgl.gen("aside")
        assert other["aside"].startswith("r")

    state = program.run()
    assert len(state["x"]) == 2
    assert state.text().count(" p0") == 1 and state.text().count(" p1") == 1


def test_choices(backend: ScriptedClient) -> None:
    @sgl.function
    def tool_use(s, question):  # type: ignore[no-untyped-def]
        s += "To answer " + question + " I need a "
        s += sgl.gen("tool", choices=["web browser", "calculator"])
        if s["tool"] == "calculator":
            s += ", so: " + sgl.gen("expression")
        s += sgl.select("sure", ["yes", "no"], temperature=0.0, choices_method=sgl.unconditional_likelihood_normalized)

    state = tool_use.run(question="1+1")
    assert state["tool"] == "calculator" and state["expression"] == "r0"
    info = state.get_meta_info("tool")
    assert {"normalized_prompt_logprobs", "input_token_logprobs", "decision"} <= set(info)


def test_constraints_and_logprobs(backend: ScriptedClient) -> None:
    backend.rule = lambda prompt: "7" if prompt.spec.grammar is not None else "word"

    @sgl.function(num_api_spec_tokens=32)
    def program(s):  # type: ignore[no-untyped-def]
        s += sgl.gen("r", max_tokens=4, temperature=0, regex=r"[0-9]")
        s += sgl.gen_int("i", 4)
        s += sgl.gen(
            "l",
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=1,
            return_text_in_logprobs=True,
        )
        s += sgl.gen("j", json_schema='{"type": "integer"}')
        with s.var_scope("both"):
            s += sgl.gen() + sgl.gen(max_tokens=2)

    state = program.run()
    assert (state["r"], state["i"], state["j"], state["both"]) == ("7", 7, "7", "wordwo")
    assert state.get_meta_info("l")["output_token_logprobs"][0] == (-0.5, ord("w"), "w")
    assert state.get_meta_info("l")["output_top_logprobs"][0] == [(-0.5, ord("w"), "w")]


def test_batches(backend: ScriptedClient) -> None:
    @sgl.function
    def qa(s, question):  # type: ignore[no-untyped-def]
        s += "Q: " + question + "\nA: " + sgl.gen("answer", stop="\n")
        return s["answer"]

    states = qa.run_batch(
        [{"question": str(i)} for i in range(5)], temperature=0, num_threads="auto", progress_bar=True
    )
    assert all(state["answer"].startswith("r") for state in states)
    assert all(state.ret_value == state["answer"] and state.error() is None for state in states)


def test_states_passed_around(backend: ScriptedClient) -> None:
    def propose(s, question, n):  # type: ignore[no-untyped-def]
        s += sgl.user(question)
        forks = s.fork(n)
        forks += sgl.assistant(sgl.gen("plan", max_tokens=16, temperature=0.3))
        return forks

    @sgl.function
    def tree(s, question):  # type: ignore[no-untyped-def]
        solutions = []
        for plan in propose(s, question, 2):
            forks = plan.fork(2)
            forks += sgl.user("Solve it.") + sgl.assistant(sgl.gen("answer"))
            solutions += list(forks)
        s.set_var("answers", [f.text() for f in solutions])

    assert len(tree.run(question="?").get_var("answers")) == 4


def test_the_rest_of_the_words(backend: ScriptedClient) -> None:
    assert sgl.Runtime is sgl.Engine
    assert sgl.flush_cache() == 0
    with pytest.raises(NotImplementedError):
        sgl.image("cat.png")
    seen: list[Prompt] = []
    backend.rule = lambda prompt: seen.append(prompt) or "x"  # type: ignore[func-returns-value]

    @sgl.function
    def program(s):  # type: ignore[no-untyped-def]
        s += sgl.gen("a", min_tokens=1, stop_token_ids=[3], ignore_eos=True, top_k=5, top_p=0.5, min_p=0.1)
        s += sgl.gen("b", frequency_penalty=0.5, presence_penalty=0.25)

    program.run(use_thread=False)
    a, b = (prompt.spec for prompt in seen)
    assert (a.min_tokens, a.stop_token_ids, a.ignore_eos, a.sampling.top_k) == (1, (3,), True, 5)
    assert (b.max_tokens, b.sampling.frequency_penalty, b.sampling.temperature) == (128, 0.5, 1.0)
