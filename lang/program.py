"""`@function`: a Python function whose first argument is a state, and the ways to run it.

Knows how a function is called and where its body runs (the caller's thread, or its event loop for `async def`); what a
run is, `run.py` knows.
"""

import asyncio
import functools
import inspect
import logging
import os
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, TypeVar, overload

from ramet.lang import ir
from ramet.lang.backends.base import as_backend
from ramet.lang.batch import run_batch
from ramet.lang.defaults import get_default_backend
from ramet.lang.hints import workload
from ramet.lang.loop import refuse_to_block, wait_async
from ramet.lang.options import SAMPLING_NAMES, check_options
from ramet.lang.run import CURRENT, Run, RunSettings, TracingRun
from ramet.lang.state import AsyncState, Face, State
from ramet.lang.suggest import did_you_mean
from ramet.lang.trace import Trace
from ramet.runtime.errors import BadRequest, Cancelled, RametError
from ramet.runtime.types import ProgramSpec

if TYPE_CHECKING:
    from ramet.lang.restore import Restored

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("ramet.lang")
_ALIASES = {"max_new_tokens": "max_tokens"}
_PROGRAM_NAMES = frozenset({"program_id", "tenant", "salt", "priority", "deadline"})
_RUN_NAMES = frozenset({"backend", "stream", "timeout", "use_thread"})
RUN_OPTIONS = SAMPLING_NAMES | _PROGRAM_NAMES | _RUN_NAMES | frozenset(_ALIASES)
"""What `run` takes beside the program's own arguments. A name of the program's signature is the program's."""


class Prepared(NamedTuple):
    """A call, ready to run."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    settings: RunSettings
    stream: bool


class Program(Generic[P, R]):
    """A program. Calling it runs it: alone as `run` does, or, given a state first, inside that state's branch."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        num_api_spec_tokens: int | None = None,
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        self.function = function
        self.num_api_spec_tokens = num_api_spec_tokens
        """Accepted for programs written for API backends that speculate; ours need no such number."""
        self.bound: dict[str, Any] = dict(bound or {})
        self.name = getattr(function, "__name__", "program")
        self.is_async = inspect.iscoroutinefunction(function)
        self.parameters = _parameters(function)
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<program {self.name}({', '.join(['s', *self.parameters])})>"

    @overload
    def __call__(self, state: Face, *args: P.args, **kwargs: P.kwargs) -> R: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> State: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Face):
            return self.function(*args, **{**self.bound, **kwargs})
        return self.run(*args, **kwargs)

    # Running

    def run(self, *args: Any, **kwargs: Any) -> State:
        """Run to the end and return the state; with `stream=True` at once, while it runs on.

        Takes the program's arguments and RUN_OPTIONS: backend, timeout (seconds, of the whole program), priority,
        deadline, tenant, salt, program_id, and sampling options as defaults of every gen. An exception in the body or
        on its branch is raised here; whatever still runs is cancelled.
        """
        refuse_to_block()
        call = self._prepare(args, kwargs)
        state = State(Run(call.settings).root, watches=call.stream)
        if call.stream:
            thread = threading.Thread(
                target=self._run_quietly, args=(state, call), name=f"ramet-{self.name}", daemon=True
            )
            thread.start()
            return state
        return self.run_body(state, call)

    def run_body(self, state: State, call: Prepared) -> State:
        """The body of a run, in this thread, to the end of everything it said."""
        run = state.branch.run
        try:
            state.ret_value = copy_context().run(self._body, state, call)
            run.end().result()
            self._raise_unseen(state)
        except BaseException as error:
            run.abandon(error)
            run.body_ended(error)
            raise
        run.body_ended()
        return state

    def _body(self, state: State, call: Prepared) -> Any:
        CURRENT.set(state.branch.run)
        if self.is_async:
            return _run_in_fresh_loop(self.function(AsyncState(state.branch), *call.args, **call.kwargs))
        return self.function(State(state.branch), *call.args, **call.kwargs)

    def _run_quietly(self, state: State, call: Prepared) -> None:
        """In a thread of our own: the error waits in the state for whoever asks."""
        try:
            self.run_body(state, call)
        except BaseException as error:
            log.debug("program %s failed while it was streamed: %r", self.name, error)

    def _raise_unseen(self, state: Face) -> None:
        error = state.branch.run.unseen_error()
        if error is not None:
            raise error.with_traceback(None) if isinstance(error, RametError) else error

    async def arun(self, *args: Any, **kwargs: Any) -> State:
        """`run` for async callers. The body of an `async def` program runs in the caller's loop, any other in a thread.

        Cancelling the task cancels the program.
        """
        call = self._prepare(args, kwargs)
        run = Run(call.settings)
        state = State(run.root)
        if not self.is_async:
            return await self._run_in_thread(state, call)
        try:
            body = self.function(AsyncState(state.branch), *call.args, **call.kwargs)
            context = copy_context()
            context.run(CURRENT.set, run)
            state.ret_value = await asyncio.create_task(body, context=context)
            await wait_async(run.end())
            self._raise_unseen(state)
        except BaseException as error:
            await wait_async(run.end(error))
            raise
        return state

    async def _run_in_thread(self, state: State, call: Prepared) -> State:
        done: Future[State] = Future()
        context = copy_context()
        threading.Thread(target=context.run, args=(_settle, done, self.run_body, state, call), daemon=True).start()
        try:
            return await wait_async(done)
        except asyncio.CancelledError:
            await wait_async(state.branch.run.end(Cancelled(f"program {self.name} was cancelled")))
            raise

    def stream(self, *args: Any, **kwargs: Any) -> "Streaming":
        """Run, and iterate over the whole text as it comes; `.state` is the state."""
        return Streaming(self.run(*args, stream=True, **kwargs))

    def run_batch(
        self,
        batch: Iterable[Mapping[str, Any] | tuple[Any, ...] | list[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        resume: str | None = None,
        **options: Any,
    ) -> Any:
        """Run once per item (arguments by name or by position), many at a time; states in the order of the items.

        An item that fails has its error in its state: `state.error()` tells it, any use raises it, the others finish.
        resume: a JSONL file; what is done is written to it, and not done again by the next call. generator_style: an
        iterator that gives each state as soon as those before it are there.
        """
        if isinstance(batch, Mapping | str):
            raise BadRequest(
                expected="a list of items", got=batch, at="run_batch(items)", hint="[{'name': value}, ...]."
            )
        return run_batch(self, list(batch), num_threads, progress_bar, generator_style, resume, options)

    def restore(
        self,
        path: str | os.PathLike[str],
        *,
        backend: Any = None,
        types: Mapping[str, Any] | None = None,
        tools: Iterable[Any] = (),
        timeout: float | None = None,
    ) -> "Restored":
        """A run that `s.checkpoint(path)` wrote, to go on with: `with program.restore(path) as s: s += ...`.

        backend: an engine with the same model. types: of the variables that are no plain values, such as
        `gen("person", dtype=Person)`: {"person": Person}. tools: the functions that the program offered; functions are
        not saved. The file is read now, and refused where it is torn; the engine is met on entering.
        """
        from ramet.lang.checkpoint import read
        from ramet.lang.restore import Restored, RestoredRun

        saved = read(path)
        if saved.name != self.name:
            raise BadRequest(expected=f"a checkpoint of {self.name}", got=saved.name, at=str(path))
        settings = RunSettings(
            backend=as_backend(backend if backend is not None else get_default_backend()),
            name=self.name,
            program=saved.program.spec,
            defaults=saved.defaults,
            timeout_s=timeout,
        )
        return Restored(RestoredRun(settings, saved, tools, types or {}))

    # Other forms

    def bind(self, **arguments: Any) -> "Program[..., R]":
        """The same program with some arguments given."""
        self._check_names(arguments)
        return Program(self.function, num_api_spec_tokens=self.num_api_spec_tokens, bound={**self.bound, **arguments})

    def trace(self, **arguments: Any) -> Trace:
        """What the program says, without an engine: arguments not given and variables are placeholders."""
        self._check_names(arguments)
        given = {**self.bound, **arguments}
        placeholders = {
            name: given.get(name, ir.Placeholder(name) if parameter.default is parameter.empty else parameter.default)
            for name, parameter in self.parameters.items()
        }
        run = TracingRun(RunSettings(backend=_NoBackend(), name=self.name, program=ProgramSpec()))
        try:
            if self.is_async:
                asyncio.run(self.function(AsyncState(run.root), **placeholders))
            else:
                self.function(State(run.root), **placeholders)
        except Exception as error:
            error.add_note(f"  in a trace of {self.name}, where what was not given is a text such as '{{topic}}'")
            raise
        return Trace(self.name, list(self.parameters), run.root)

    # Calls

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Prepared:
        return self._prepare(args, kwargs)

    def _prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Prepared:
        own, options = self._split(kwargs)
        arguments = {**{k: v for k, v in self.bound.items() if k not in own}, **own}
        self._check_call(args, arguments)
        return Prepared(args, arguments, self._settings(options), bool(options.get("stream")))

    def _split(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The program's arguments, and ours."""
        own: dict[str, Any] = {}
        options: dict[str, Any] = {}
        takes_all = any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())
        for name, value in kwargs.items():
            if name in self.parameters:
                own[name] = value
            elif name in RUN_OPTIONS:
                options[_ALIASES.get(name, name)] = value
            elif takes_all:
                own[name] = value
            else:
                self._check_names({name: value})
        return own, options

    def _check_names(self, arguments: Mapping[str, Any]) -> None:
        if any(p.kind is p.VAR_KEYWORD for p in self.parameters.values()):
            return
        for name in arguments:
            if name not in self.parameters:
                near = did_you_mean(name, [*self.parameters, *RUN_OPTIONS])
                raise BadRequest(
                    expected=f"an argument of {self.name} ({', '.join(self.parameters) or 'none'})",
                    got=name,
                    at=f"{self.name}.run({name}=...)",
                    hint=near or f"Or an option: {', '.join(sorted(RUN_OPTIONS))}.",
                )

    def _check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            inspect.signature(self.function).bind(None, *args, **kwargs)
        except TypeError as error:
            given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
            raise BadRequest(
                expected=f"{self.name}({', '.join(self.parameters)})",
                got=f"{self.name}({given})",
                at=f"{self.name}.run",
                hint=f"{error}.",
            ) from None

    def _settings(self, options: dict[str, Any]) -> RunSettings:
        parent = CURRENT.get()
        backend = options.get("backend")
        if backend is None:
            backend = parent.settings.backend if parent is not None else get_default_backend()
        sampling = {k: v for k, v in options.items() if k in SAMPLING_NAMES and k != "timeout"}
        check_options({"timeout": options.get("timeout")}, SAMPLING_NAMES, "run")
        return RunSettings(
            backend=as_backend(backend),
            name=self.name,
            program=self._program_spec(options, parent),
            defaults=check_options(sampling, SAMPLING_NAMES, "run"),
            parameters=frozenset(self.parameters),
            streaming=bool(options.get("stream")),
            timeout_s=options.get("timeout"),
        )

    def _program_spec(self, options: Mapping[str, Any], parent: Run | None) -> ProgramSpec:
        """A sub-program inherits tenant, salt and priority."""
        inherited = parent.settings.program if parent is not None else ProgramSpec()
        return ProgramSpec(
            program_id=options.get("program_id") or f"{self.name}-{secrets.token_hex(6)}",  # ours: children name it
            tenant=options.get("tenant", inherited.tenant),
            salt=options.get("salt", inherited.salt),
            priority=options.get("priority", inherited.priority),
            deadline_s=options.get("deadline"),
            parent=parent.program_id if parent is not None else None,
            workload=workload(getattr(self.function, "__module__", ""), self.name),
        )


class Streaming:
    """A program that runs on while its text is read."""

    def __init__(self, state: State) -> None:
        self.state = state

    def __iter__(self) -> Iterator[str]:
        return self.state.text_iter()

    def __aiter__(self) -> AsyncIterator[str]:
        return self.state.text_async_iter()


class _NoBackend:
    async def connect(self) -> Any:
        raise AssertionError("a trace runs nothing")


def _run_in_fresh_loop(body: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end; in a thread of its own where this one has a loop already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(body)
    done: Future[Any] = Future()
    context = copy_context()
    threading.Thread(target=context.run, args=(_settle, done, asyncio.run, body), daemon=True).start()
    return done.result()


def _settle(done: "Future[Any]", work: Callable[..., Any], *args: Any) -> None:
    try:
        done.set_result(work(*args))
    except BaseException as error:
        done.set_exception(error)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise BadRequest(
            expected="a function whose first argument is the state",
            got=f"{getattr(function, '__name__', function)}()",
            at="@function",
            hint="def program(s, ...): s += ...",
        )
    return {parameter.name: parameter for parameter in parameters[1:]}


@overload
def function(
    function: Callable[Concatenate[State, P], R], /, *, num_api_spec_tokens: int | None = None
) -> Program[P, R]: ...
@overload
def function(
    function: Callable[Concatenate[AsyncState, P], R], /, *, num_api_spec_tokens: int | None = None
) -> Program[P, R]: ...
@overload
def function(
    *, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[Concatenate[Any, P], R]], Program[P, R]]: ...
def function(function: Callable[..., Any] | None = None, /, *, num_api_spec_tokens: int | None = None) -> Any:
    """Make a function of a state a program: `@function` or `@function(...)`. It may be `async def`."""
    if function is None:
        return lambda late: Program(late, num_api_spec_tokens=num_api_spec_tokens)
    return Program(function, num_api_spec_tokens=num_api_spec_tokens)
