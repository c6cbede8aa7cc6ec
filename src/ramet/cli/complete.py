"""`ramet complete PROMPT`: complete one prompt, printed as it comes."""

import sys
from typing import Annotated

import typer

from ramet.cli.backends import ContextLength, Device, DType, KvDType, KvTokens, Model, Template, Url, choose, close
from ramet.lang.api import gen
from ramet.lang.program import function
from ramet.lang.state import State


@function
def completion(s: State, prompt: str, stop: list[str]) -> None:
    s += prompt
    s += gen("text", stop=stop or None)


def main(
    prompt: Annotated[str | None, typer.Argument(help="Left out or `-`: read from stdin.")] = None,
    model: Model = None,
    url: Url = None,
    max_tokens: Annotated[int, typer.Option(help="At most.")] = 128,
    temperature: Annotated[float, typer.Option(help="0: always the most probable word.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="The same text again, at a temperature above 0.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given again.")] = None,
    device: Device = None,
    dtype: DType = None,
    kv_tokens: KvTokens = None,
    kv_cache_dtype: KvDType = None,
    context_length: ContextLength = None,
    chat_template: Template = None,
) -> None:
    """Complete one prompt."""
    text = sys.stdin.read() if prompt in (None, "-") else prompt
    backend = choose(
        model, url, device=device, dtype=dtype, kv_tokens=kv_tokens, context_length=context_length,
        kv_cache_dtype=kv_cache_dtype, chat_template=chat_template,
    )  # fmt: skip
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    try:
        state = completion.run(text, stop or [], backend=backend, stream=True, **options)
        for piece in state.text_iter("text"):
            print(piece, end="", flush=True)
        print()
        state.sync()
    finally:
        close(backend)
