"""Python functions that a model may call: their schema, and running a call. Knows no branch; calls.py has the form.

What goes wrong in a tool is text for the model: it may try again.
"""

import asyncio
import functools
import inspect
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextvars import Context
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from ramet.lang.calls import CLOSE, OPEN, ToolCall, parse_calls
from ramet.runtime.errors import BadRequest
from ramet.runtime.types import Delta

P = ParamSpec("P")
R = TypeVar("R")
_RESULT_LIMIT = 20_000
"""Characters of a result that the model gets to see; what is cut is said."""


class ToolResult(NamedTuple):
    """What came of it."""

    call: ToolCall
    text: str
    """What the model reads."""
    value: object
    """What the function returned; None after an error."""
    error: BaseException | None
    elapsed_s: float


class Tool(Generic[P, R]):
    """A function that a model may call. Calling it from Python is calling the function."""

    def __init__(
        self, function: Callable[P, R], *, name: str | None, timeout_s: float | None, retries: int, eager: bool
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.timeout_s, self.retries, self.eager = timeout_s, retries, eager
        self.arguments_type = _arguments_type(function, self.name)
        self.description = _summary(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"tool({self.name})"

    @property
    def parameters(self) -> dict[str, object]:
        """JSON Schema of the arguments."""
        (schema,), definitions = msgspec.json.schema_components([self.arguments_type], ref_template="#/$defs/{name}")
        own = definitions.pop(schema["$ref"].rpartition("/")[2])
        own.pop("title", None)
        own["additionalProperties"] = False
        own.setdefault("required", [])
        return {**own, "$defs": definitions} if definitions else own

    @property
    def schema(self) -> dict[str, object]:
        """The tool as chat templates and OpenAI clients know it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    async def run(self, call: ToolCall) -> ToolResult:
        """Run one call; whatever happens comes back as a result."""
        started = time.monotonic()
        value: object = None
        error: Exception | None = None
        for _ in range(self.retries + 1):
            try:
                value, error = await asyncio.wait_for(self._attempt(call), self.timeout_s), None
                break
            except msgspec.ValidationError as wrong:
                error = wrong  # the model's fault: trying again with the same arguments is no use
                break
            except TimeoutError:
                error = TimeoutError(f"no result within {self.timeout_s} s")
            except Exception as failed:
                error = failed
        text = as_text(value) if error is None else f"Error: {type(error).__name__}: {error}"
        return ToolResult(call, text, value, error, time.monotonic() - started)

    async def _attempt(self, call: ToolCall) -> object:
        given = msgspec.json.decode(call.arguments.encode() or b"{}", type=self.arguments_type)
        arguments = {field: getattr(given, field) for field in given.__struct_fields__}
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**arguments)  # type: ignore[call-arg]
        return await asyncio.to_thread(self.function, **arguments)  # type: ignore[call-arg]


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, timeout_s: float | None = None, retries: int = 0, eager: bool = False
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    timeout_s: float | None = None,
    retries: int = 0,
    eager: bool = False,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function, sync or async, a tool: its schema comes from its signature and docstring.

    timeout_s: seconds per attempt; a sync function that runs past it is left running in its thread, its result ignored.
    retries: further attempts after an exception or a timeout.
    eager: it has no side effects, so it may start as soon as its arguments are complete, before the model's turn ends.
    """
    if function is not None:
        return Tool(function, name=name, timeout_s=timeout_s, retries=retries, eager=eager)
    return lambda late: Tool(late, name=name, timeout_s=timeout_s, retries=retries, eager=eager)


def _arguments_type(function: Callable[..., object], name: str) -> type[msgspec.Struct]:
    """A Struct whose fields are the function's parameters: it gives the schema and checks the arguments."""
    hints = get_type_hints(function, include_extras=True)
    said = _parameter_docs(function)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise BadRequest(
                expected="named parameters",
                got=str(parameter),
                at=f"tool {name}",
                hint="A model calls tools by name only.",
            )
        annotation = _described(hints.get(parameter.name, str), said.get(parameter.name))
        if parameter.default is parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            fields.append((parameter.name, annotation, _default(parameter.default)))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: object) -> object:
    """msgspec copies empty containers and refuses other mutable defaults: those come from a factory."""
    if isinstance(value, list | dict | set) and value:
        return msgspec.field(default_factory=lambda: type(value)(value))
    return value


def _described(annotation: Any, text: str | None) -> Any:
    described = get_origin(annotation) is Annotated and any(
        isinstance(x, msgspec.Meta) for x in get_args(annotation)[1:]
    )
    return annotation if text is None or described else Annotated[annotation, msgspec.Meta(description=text)]


def _summary(function: Callable[..., object]) -> str:
    """The docstring up to its list of arguments."""
    text = inspect.getdoc(function) or ""
    return re.split(r"\n\s*(?:Args|Arguments|Parameters|Returns|Raises):|\n\s*:param ", text, maxsplit=1)[0].strip()


def _parameter_docs(function: Callable[..., object]) -> dict[str, str]:
    """Descriptions in the docstring: `:param x: text`, or `x: text` lines under `Args:`."""
    text = inspect.getdoc(function) or ""
    found = dict(re.findall(r"^\s*:param (?:\w+ )?(\w+):\s*(.+)$", text, re.MULTILINE))
    section = re.search(r"^(?:Args|Arguments|Parameters):\s*\n((?:[ \t]+.*\n?|\n)*)", text, re.MULTILINE)
    if section is not None:
        found |= dict(re.findall(r"^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.+)$", section[1], re.MULTILINE))
    return {name: said.strip() for name, said in found.items()}


def as_text(value: object) -> str:
    """What the model reads of a value: text as it is, everything else as JSON."""
    if isinstance(value, str):
        text = value
    else:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    if len(text) <= _RESULT_LIMIT:
        return text
    return f"{text[:_RESULT_LIMIT]}\n[cut: {len(text) - _RESULT_LIMIT} more characters]"


async def run_call(call: ToolCall, tools: Mapping[str, Tool[..., Any]]) -> ToolResult:
    """Run one call among the tools at hand; an unknown name is told to the model."""
    if call.problem is not None:
        return ToolResult(
            call, call.problem, None, BadRequest(expected="a tool call", got=call.arguments, at=call.id), 0.0
        )
    if (found := tools.get(call.name)) is not None:
        return await found.run(call)
    text = f"Error: there is no tool {call.name!r}. Known: {', '.join(tools) or 'none'}."
    return ToolResult(call, text, None, BadRequest(expected=f"one of {list(tools)}", got=call.name, at=call.id), 0.0)


def by_name(tools: Iterable[Any]) -> dict[str, Tool[..., Any]]:
    """Tools by their names; plain functions become tools."""
    made = [
        item if isinstance(item, Tool) else Tool(item, name=None, timeout_s=None, retries=0, eager=False)
        for item in tools
    ]
    named = {item.name: item for item in made}
    if len(named) != len(made):
        raise BadRequest(expected="tools with different names", got=[item.name for item in made], at="$.tools")
    return named


class EarlyCalls:
    """Starts eager tools while the model still writes: as soon as a call is closed. Lives on the programs' loop."""

    def __init__(self, tools: Mapping[str, Tool[..., Any]], context: Context) -> None:
        self._tools, self._context = tools, context
        self._text = ""
        self._tasks: dict[int, tuple[ToolCall, asyncio.Task[ToolResult]]] = {}

    def read(self, event: Delta) -> None:
        """Follow the turn's text."""
        self._text += event.text
        if CLOSE[-1] not in event.text:
            return
        for index, call in enumerate(parse_calls(self._text, complete_only=True)):
            tool = self._tools.get(call.name)
            if index not in self._tasks and tool is not None and tool.eager:
                task = asyncio.get_running_loop().create_task(tool.run(call), context=self._context.copy())
                self._tasks[index] = (call, task)

    def take(self, index: int, call: ToolCall) -> "asyncio.Task[ToolResult] | None":
        """The run of this call, if it was started."""
        started, task = self._tasks.pop(index, (None, None))
        same = started is not None and (started.name, started.arguments) == (call.name, call.arguments)
        return task if same else None

    def cancel(self) -> None:
        for _, task in self._tasks.values():
            task.cancel()


async def run_calls(
    calls: list[ToolCall],
    tools: Mapping[str, Tool[..., Any]],
    gap: "Future[None]",
    early: EarlyCalls | None,
    context: Context,
) -> list[ToolResult]:
    """All calls side by side; the gap has begun when the first starts, except for those that were started early."""
    await asyncio.wrap_future(gap)
    loop = asyncio.get_running_loop()
    tasks = [
        (early.take(index, call) if early is not None else None)
        or loop.create_task(run_call(call, tools), context=context.copy())
        for index, call in enumerate(calls)
    ]
    if early is not None:
        early.cancel()
    results = await asyncio.gather(*tasks)
    return [ToolResult(call, *result[1:]) for call, result in zip(calls, results, strict=True)]


def describe_tools(tools: Iterable[Any]) -> str:
    """Tools as text for a system message, for models whose chat template shows none."""
    schemas = [msgspec.json.encode(tool.schema["function"]).decode() for tool in by_name(tools).values()]
    how = f'{OPEN}{{"name": <name>, "arguments": <arguments>}}{CLOSE}'
    return "You may call these functions:\n" + "\n".join(schemas) + f"\nTo call one, write:\n{how}"
