"""`ramet run FILE`: run a program of a Python file, with arguments from the command line."""

import inspect
import json
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import typer

from ramet.cli.backends import ContextLength, Device, DType, KvDType, KvTokens, Model, Template, Url, choose, close
from ramet.lang.backends.base import Backend
from ramet.lang.defaults import set_default_backend
from ramet.lang.program import Program
from ramet.lang.state import State
from ramet.runtime.errors import BadRequest


def main(
    file: Annotated[Path, typer.Argument(help="A Python file with a main(backend) or an @function.")],
    fn: Annotated[str | None, typer.Option(help="Which @function; not needed where there is one.")] = None,
    arg: Annotated[
        list[str] | None, typer.Option(help="An argument of it: name=value, the value as JSON or text.")
    ] = None,
    model: Model = None,
    url: Url = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of every gen that does not say.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of every gen that does not say.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the variables as JSON and nothing else.")] = False,
    tree: Annotated[bool, typer.Option(help="Show the branches and their tokens at the end.")] = False,
    device: Device = None,
    dtype: DType = None,
    kv_tokens: KvTokens = None,
    kv_cache_dtype: KvDType = None,
    context_length: ContextLength = None,
    chat_template: Template = None,
) -> None:
    """Run a program of yours and print its text as it comes."""
    names = load(file)
    backend = choose(
        model, url, device=device, dtype=dtype, kv_tokens=kv_tokens, context_length=context_length,
        kv_cache_dtype=kv_cache_dtype, chat_template=chat_template,
    )  # fmt: skip
    set_default_backend(backend)
    options = {k: v for k, v in dict(max_tokens=max_tokens, temperature=temperature).items() if v is not None}
    try:
        execute(names, fn, arg or [], backend, options, as_json=as_json, tree=tree)
    finally:
        set_default_backend(None)
        close(backend)


def load(file: Path) -> dict[str, Any]:
    """The file's names. It is run as a module, not as a script: its `if __name__ == "__main__"` is left out."""
    if not file.is_file():
        raise BadRequest(expected="a Python file", got=str(file), at="FILE", hint=f"It is looked for in {Path.cwd()}.")
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        return runpy.run_path(str(file), run_name=f"ramet_run_{file.stem}")
    finally:
        sys.path.pop(0)


def execute(
    names: Mapping[str, Any],
    fn: str | None,
    arguments: list[str],
    backend: Backend,
    options: Mapping[str, Any],
    *,
    as_json: bool,
    tree: bool,
) -> State | None:
    """Run the program that was meant; None where it is the file's own `main`."""
    programs = {name: value for name, value in names.items() if isinstance(value, Program)}
    if fn is None and not arguments and callable(names.get("main")) and not (as_json or tree):
        call_main(names["main"], backend)
        return None
    program = pick(programs, fn)
    given = dict(parse(program, pair) for pair in arguments)
    state = program.run(**given, **options, backend=backend, stream=not as_json)
    report(state, as_json=as_json, tree=tree)
    return state


def call_main(main: Callable[..., object], backend: Backend) -> None:
    """A file's own `main`, with the backend where it takes one; it is the default one in any case."""
    main(*([backend] if inspect.signature(main).parameters else []))


def pick(programs: Mapping[str, Program[..., Any]], fn: str | None) -> Program[..., Any]:
    """By name, or the only one."""
    if fn is None and len(programs) == 1:
        return next(iter(programs.values()))
    if fn is None or fn not in programs:
        raise BadRequest(
            expected=f"one of {', '.join(programs)}" if programs else "a file with an @function",
            got=fn,
            at="--fn",
            hint="Name the program to run." if programs else "",
        )
    return programs[fn]


def parse(program: Program[..., Any], pair: str) -> tuple[str, Any]:
    """`name=value`: JSON where it is JSON and the parameter's type allows, text otherwise."""
    name, equals, text = pair.partition("=")
    if not equals:
        raise BadRequest(expected="name=value", got=pair, at="--arg")
    kind = get_type_hints(program.function).get(name, inspect.Parameter.empty)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if kind is str:
        return name, text
    if kind is inspect.Parameter.empty:
        return name, value
    try:
        return name, msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(expected=f"{name} as {kind}", got=text, at="--arg", hint=f"{error}.") from None


def report(state: State, *, as_json: bool, tree: bool) -> None:
    if as_json:
        known = sorted(state.branch.transcript.names())
        values = {"variables": {name: state[name] for name in known}, "returned": state.ret_value}
        print(json.dumps(msgspec.to_builtins(values, enc_hook=repr, str_keys=True), ensure_ascii=False))
    else:
        for piece in state.text_iter():
            print(piece, end="", flush=True)
        print()
        state.sync()
        if state.ret_value is not None:
            print(f"\nreturned: {state.ret_value!r}")
    if tree:
        print(f"\n{state.tree()}", file=sys.stderr if as_json else sys.stdout)
