"""`ramet chat`: talk to a model. A program whose user is you; `/undo` is a rollback, nothing is computed twice."""

from collections.abc import Callable
from typing import Annotated

import typer

from ramet.cli.backends import ContextLength, Device, DType, KvDType, KvTokens, Model, Template, Url, choose, close
from ramet.lang.api import assistant, gen, system, user
from ramet.lang.branch import ProgramMark
from ramet.lang.program import function
from ramet.lang.state import State

HELP = "/undo takes your last turn back, /tree shows what was computed, /exit ends. An empty line ends too."
Read = Callable[[], str | None]
"""The next line; None at the end."""


@function
def conversation(s: State, read: Read, instruction: str | None) -> None:
    """Turns until there is no next line."""
    if instruction:
        s += system(instruction)
    marks: list[ProgramMark] = []
    while (line := read()) not in (None, "", "/exit"):
        match line:
            case "/undo":
                undo(s, marks)
            case "/tree":
                print(s.tree())
            case "/help":
                print(HELP)
            case _:
                marks.append(s.mark())
                answer(s, str(line))


def answer(s: State, line: str) -> None:
    """One turn, printed as it comes."""
    s += user(line)
    s += assistant(gen("answer"))
    for piece in s.text_iter("answer"):
        print(piece, end="", flush=True)
    usage = s.get_meta_info("answer")
    print(f"\n[{usage['completion_tokens']} tokens, {usage['cached_tokens']} of {usage['prompt_tokens']} cached]")


def undo(s: State, marks: list[ProgramMark]) -> None:
    if marks:
        s.rollback(marks.pop())
        print("[the last turn is gone]")
    else:
        print("[there is nothing to take back]")


def from_terminal() -> str | None:
    try:
        return input("> ")
    except EOFError:
        print()
        return None


def main(
    model: Model = None,
    url: Url = None,
    instruction: Annotated[str | None, typer.Option("--system", help="What the model is told first.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Of each answer.")] = 512,
    temperature: Annotated[float, typer.Option(help="0: always the most probable word.")] = 0.7,
    device: Device = None,
    dtype: DType = None,
    kv_tokens: KvTokens = None,
    kv_cache_dtype: KvDType = None,
    context_length: ContextLength = None,
    chat_template: Template = None,
) -> None:
    """Talk to a model in the terminal."""
    backend = choose(
        model, url, device=device, dtype=dtype, kv_tokens=kv_tokens, context_length=context_length,
        kv_cache_dtype=kv_cache_dtype, chat_template=chat_template,
    )  # fmt: skip
    try:
        ready = getattr(backend, "ready", None)
        if ready is not None:
            print(f"{ready().name}. {HELP}")
        options = {"max_tokens": max_tokens, "temperature": temperature}
        conversation.run(from_terminal, instruction, backend=backend, stream=True, **options).sync()
    except KeyboardInterrupt:
        print()
    finally:
        close(backend)
