"""The words of a program as values: frozen nodes, which know nothing of branches or engines.

`repr` of a node is the Python that makes it, so a traced program prints as a program. `+` puts nodes and texts in a
row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from ramet.runtime.errors import BadRequest
from ramet.runtime.types import SelectMethod

if TYPE_CHECKING:
    from ramet.lang.state import State
    from ramet.lang.tools import Tool


class Node:
    """Base of all: what can be said to a state with `s += ...`."""

    def __add__(self, other: "str | Node") -> "Concat":
        return Concat((*_parts(self), *_parts(other)))

    def __radd__(self, other: "str | Node") -> "Concat":
        return Concat((*_parts(other), *_parts(self)))

    def __format__(self, how: str) -> str:
        """In an f-string it would become its own source text, and the model would never be asked."""
        raise BadRequest(
            expected="text and expressions joined by +",
            got=self,
            at='f"...{...}"',
            hint=f'An f-string is made at once, before the model answers. Write "..." + {self!r} + "...".',
        )


@dataclass(frozen=True)
class Literal(Node):
    """Text that the program writes."""

    text: str

    def __repr__(self) -> str:
        return repr(self.text)


@dataclass(frozen=True)
class Concat(Node):
    """One after the other."""

    parts: tuple[Node, ...]

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))


@dataclass(frozen=True)
class Gen(Node):
    """Text that the model writes, and the name it is bound to."""

    name: str | None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return _call("gen", [repr(self.name)] if self.name is not None else [], self.options)


@dataclass(frozen=True)
class Select(Node):
    """The model picks one of the choices."""

    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod = "total"
    temperature: float = 0.0
    seed: int | None = None

    def __repr__(self) -> str:
        options: dict[str, object] = {}
        if self.method != "total":
            options["choices_method"] = self.method
        if self.temperature:
            options["temperature"] = self.temperature
        names = [repr(self.name)] if self.name is not None else []
        choices = repr(list(self.choices)) if names else f"choices={list(self.choices)!r}"
        return _call("select", [*names, choices], options)


@dataclass(frozen=True)
class RoleBegin(Node):
    """A chat message begins."""

    role: str
    extra: tuple[tuple[str, object], ...] = ()

    def __repr__(self) -> str:
        return _call(f"{self.role}_begin", [], dict(self.extra))


@dataclass(frozen=True)
class RoleEnd(Node):
    """It ends."""

    role: str

    def __repr__(self) -> str:
        return f"{self.role}_end()"


@dataclass(frozen=True)
class Role(Node):
    """A whole chat message."""

    role: str
    body: "Spoken"
    extra: tuple[tuple[str, object], ...] = ()

    def __repr__(self) -> str:
        return _call(self.role, [repr(self.body)], dict(self.extra))


class Placeholder(str):
    """Stands for a text that a traced program does not have yet; does what texts do, and reads `{name}` in them."""

    def __new__(cls, name: str) -> "Placeholder":
        return super().__new__(cls, f"{{{name}}}")


@dataclass(frozen=True)
class ScopeBegin(Node):
    name: str

    def __repr__(self) -> str:
        return f"var_scope_begin({self.name!r})"


@dataclass(frozen=True)
class ScopeEnd(Node):
    name: str

    def __repr__(self) -> str:
        return f"var_scope_end({self.name!r})"


@dataclass(frozen=True)
class UseTools(Node):
    """The tools that the chat template shows to the model."""

    tools: tuple["Tool[..., Any]", ...]

    def __repr__(self) -> str:
        return _call("use_tools", [tool.name for tool in self.tools], {})


@dataclass(frozen=True)
class Verb(Node):
    """Something a program did to a branch that is not text: fork, join, mark, rollback, gap, call_tools. For traces."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        return _call(self.name, [], self.options)


Spoken = Union[str, Node, Sequence["Spoken"], Callable[["State"], object], None]  # noqa: UP007 - recursive
"""What may stand right of `s +=`."""


def _parts(value: "str | Node") -> tuple[Node, ...]:
    if isinstance(value, Concat):
        return value.parts
    return (Literal(value),) if isinstance(value, str) else (value,)


def _call(name: str, positional: Sequence[str], options: Mapping[str, object]) -> str:
    given = [f"{key}={_shown(value)}" for key, value in options.items()]
    return f"{name}({', '.join([*positional, *given])})"


def _shown(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)
