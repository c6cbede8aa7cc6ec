"""`ramet demo`: one program with everything in it, printed as it runs; then its tree, and what the cache saved."""

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from ramet.cli.backends import ContextLength, Device, DType, KvDType, KvTokens, Model, Template, Url, choose, close
from ramet.lang.api import assistant, gen, select, system, user
from ramet.lang.backends.base import Backend
from ramet.lang.program import function
from ramet.lang.state import State
from ramet.runtime.types import Usage

TOPICS = ("food", "sleep", "exercise", "friends")


def show(who: str, pieces: Iterator[str]) -> None:
    """A line that grows as the text comes."""
    print(f"\n{who:>10} │ ", end="", flush=True)
    for piece in pieces:
        print(piece.replace("\n", f"\n{'':>10} │ "), end="", flush=True)


@function
def advice(s: State, goal: str, max_tokens: int) -> None:
    """Ask once, go four ways at the same time, come together, choose, and go on."""
    question = f"How can I {goal}? Answer in one sentence."
    s += system("You are a helpful assistant. You answer briefly.")
    s += user(question)
    s += assistant(gen("answer", max_tokens=max_tokens, temperature=0))
    show("user", iter([question]))
    show("assistant", s.text_iter("answer"))

    forks = s.fork(4)
    forks += lambda i: user(f"And what about {TOPICS[i]}? One sentence.")
    forks += assistant(gen("tip", max_tokens=max_tokens, temperature=0))
    for topic, fork in zip(TOPICS, forks, strict=True):
        show(topic, fork.text_iter("tip"))
    forks.join()

    s += user("Which of these matters most: " + ", ".join(TOPICS) + "?")
    s += assistant(select("choice", list(TOPICS)))
    show("user", iter(["Which of these matters most?"]))
    show("assistant", iter([_with_probabilities(s)]))

    s += user("Give me one last word of advice.")
    s += assistant(gen("last", max_tokens=max_tokens, temperature=0))
    show("user", iter(["Give me one last word of advice."]))
    show("assistant", s.text_iter("last"))
    print()


def _with_probabilities(s: State) -> str:
    probabilities = s.get_meta_info("choice")["probabilities"]
    odds = ", ".join(f"{topic} {value:.0%}" for topic, value in zip(TOPICS, probabilities, strict=True))
    return f"{s['choice']}   ({odds})"


def saved(usage: Usage) -> str:
    """The demo's last line."""
    share = usage.cached_tokens / max(usage.prompt_tokens, 1)
    computed = usage.prompt_tokens - usage.cached_tokens
    return (
        f"The radix cache saved {usage.cached_tokens:,} of {usage.prompt_tokens:,} prompt tokens ({share:.0%}): "
        f"{computed:,} were computed, {usage.completion_tokens:,} generated."
    )


def tour(backend: Backend, *, max_tokens: int = 32) -> State:
    """Run the demo on a backend; returns the state."""
    ready = getattr(backend, "ready", None)
    if ready is not None:
        card = ready()
        size = f"{card.parameters / 1e6:,.0f}M parameters"
        print(f"{card.name}: {card.model_type}, {size}, {card.dtype} on {card.device}")
    started = time.monotonic()
    state = advice.run("live a healthy life", max_tokens, backend=backend, stream=True)
    state.sync()
    elapsed_s = time.monotonic() - started
    print(f"\n{state.tree()}\n\n{saved(state.usage)} {elapsed_s:.1f} s.")
    return state


def main(
    model: Model = None,
    url: Url = None,
    max_tokens: Annotated[int, typer.Option(help="Of each answer.")] = 32,
    device: Device = None,
    dtype: DType = None,
    kv_tokens: KvTokens = None,
    kv_cache_dtype: KvDType = None,
    context_length: ContextLength = None,
    chat_template: Template = None,
) -> None:
    """Run a program with roles, a fork of 4, a join, a select and a second turn, and show what the cache saved."""
    backend = choose(
        model, url, device=device, dtype=dtype, kv_tokens=kv_tokens, context_length=context_length,
        kv_cache_dtype=kv_cache_dtype, chat_template=chat_template,
    )  # fmt: skip
    try:
        tour(backend, max_tokens=max_tokens)
    finally:
        close(backend)
