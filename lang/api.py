"""The words a user types. Each builds a node; nothing runs until a state is given it.

@function
def tip(s, topic):
    s += user(f"A tip about {topic}, please.")
    s += assistant(gen("tip", max_tokens=40))
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, get_args, overload

from ramet.lang import ir
from ramet.lang.options import GEN_NAMES, METHODS, CommonOptions, GenOptions, check_options
from ramet.lang.tools import Tool
from ramet.lang.tools import tool as make_tool
from ramet.runtime.errors import BadRequest, NotBuilt
from ramet.runtime.types import SelectMethod

P = ParamSpec("P")
R = TypeVar("R")

token_length_normalized: Literal["token_length_normalized"] = "token_length_normalized"
"""`select`: by the mean logprob of a choice's tokens."""
greedy_token_selection: Literal["greedy_token_selection"] = "greedy_token_selection"
"""`select`: token by token, as greedy decoding among the choices would go."""
unconditional_likelihood_normalized: Literal["unconditional_likelihood_normalized"] = (
    "unconditional_likelihood_normalized"
)
"""`select`: by how much more probable the context makes a choice."""


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Collection[str] | None = None,
    **options: Unpack[GenOptions],
) -> ir.Gen | ir.Select:
    """Let the model write, and bind it to `name`.

    `options` are those of `GenOptions`. A constraint is one of dtype, regex, json_schema, grammar, choices, tools; with
    `dtype` the variable has that type. `n` samples: the variable is a list, and the branch goes on with the first.
    >>> gen("tip", max_tokens=40, stop="\\n")
    gen('tip', max_tokens=40, stop='\\n')
    """
    _check_name(name)
    given = check_options(
        {"max_tokens": max_tokens, "min_tokens": min_tokens, "n": n, "stop": stop, **options}, GEN_NAMES, "gen"
    )
    if "choices" in given:
        return _choose(name, given)
    if "choices_method" in given:
        raise BadRequest(expected="choices beside choices_method", got=given["choices_method"], at="$.choices_method")
    return ir.Gen(name, given)


def _choose(name: str | None, given: dict[str, Any]) -> ir.Select:
    """`gen(choices=...)` is a select; what a select can't heed is refused."""
    known = {"choices", "choices_method", "temperature", "seed", "max_tokens", "return_logprob"}
    for option in given:
        if option not in known:
            raise BadRequest(expected=f"only {sorted(known)} beside choices", got=option, at=f"$.{option}")
    return select(
        name,
        given["choices"],
        given.get("temperature", 0.0),
        given.get("choices_method", "total"),
        seed=given.get("seed"),
    )


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Collection[str] | None = None,
    **options: Unpack[CommonOptions],
) -> ir.Gen | ir.Select:
    """`gen` of a whole number: the variable is an int."""
    return gen(name, max_tokens, min_tokens, n, stop, dtype=int, **options)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Collection[str] | None = None,
    **options: Unpack[CommonOptions],
) -> ir.Gen | ir.Select:
    """`gen` of a quoted string: the variable is the text between the quotes."""
    return gen(name, max_tokens, min_tokens, n, stop, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float = 0.0,
    choices_method: SelectMethod = "total",
    *,
    seed: int | None = None,
) -> ir.Select:
    """Let the model pick one of `choices` and bind it to `name`. temperature 0: the best; above: drawn by probability.

    >>> select("answer", ["yes", "no"])
    select('answer', ['yes', 'no'])
    """
    _check_name(name)
    if isinstance(choices, str) or choices is None:
        hint = 'Write ["yes", "no"].' if choices is None else f"Write [{choices!r}, ...]."
        raise BadRequest(expected="a list of texts", got=choices, at="$.choices", hint=hint)
    texts = tuple(choices)
    if not texts or any(not isinstance(text, str) or not text for text in texts):
        raise BadRequest(
            expected="one or more texts, none empty",
            got=list(texts),
            at="$.choices",
            hint="Make texts of them: [str(x) for x in choices]." if not all(isinstance(t, str) for t in texts) else "",
        )
    if len(set(texts)) != len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise BadRequest(expected="different choices", got=f"{twice!r} more than once", at="$.choices")
    if choices_method not in METHODS:
        raise BadRequest(expected=f"one of {list(METHODS)}", got=choices_method, at="$.choices_method")
    check_options({"temperature": temperature}, GEN_NAMES, "select")
    return ir.Select(name, texts, choices_method, temperature, seed)


def _check_name(name: object) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise BadRequest(expected="a name as text, or none", got=name, at="$.name")


def role(name: str, body: ir.Spoken = "") -> ir.Role:
    """A chat message of any role."""
    if not isinstance(name, str) or not name:
        raise BadRequest(expected="a role's name as text", got=name, at="role(name, ...)", hint='role("user", "Hi").')
    return ir.Role(name, _body(body))


def system(body: ir.Spoken = "") -> ir.Role:
    """A system message: `s += system("...")`."""
    return ir.Role("system", _body(body))


def user(body: ir.Spoken = "") -> ir.Role:
    """A user's message."""
    return ir.Role("user", _body(body))


def assistant(body: ir.Spoken = "") -> ir.Role:
    """An assistant's message; what `gen` makes inside is part of it."""
    return ir.Role("assistant", _body(body))


@overload
def tool(what: str | ir.Node | list[Any] | None = ..., /) -> ir.Role: ...
@overload
def tool(what: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, timeout_s: float | None = None, retries: int = 0, eager: bool = False
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(what: Any = None, /, **options: Any) -> Any:
    """Two things share the word. `@tool` makes a function a tool (see `lang.tools.tool`); `s += tool("text")` is a
    message of role tool."""
    if callable(what) or options:
        return make_tool(what, **options) if callable(what) else make_tool(**options)
    return ir.Role("tool", _body(what))


def _body(body: ir.Spoken) -> ir.Spoken:
    return "" if body is None else body


def system_begin() -> ir.RoleBegin:
    return ir.RoleBegin("system")


def system_end() -> ir.RoleEnd:
    return ir.RoleEnd("system")


def user_begin() -> ir.RoleBegin:
    return ir.RoleBegin("user")


def user_end() -> ir.RoleEnd:
    return ir.RoleEnd("user")


def assistant_begin() -> ir.RoleBegin:
    return ir.RoleBegin("assistant")


def assistant_end() -> ir.RoleEnd:
    return ir.RoleEnd("assistant")


def tool_begin() -> ir.RoleBegin:
    return ir.RoleBegin("tool")


def tool_end() -> ir.RoleEnd:
    return ir.RoleEnd("tool")


def image(path: object) -> ir.Node:
    """No model that sees is built yet."""
    raise NotBuilt(f"image({path!r})", hint="There is no vision model yet: describe the picture in words.")


def video(path: object, num_frames: int = 1) -> ir.Node:
    """No model that sees is built yet."""
    raise NotBuilt(f"video({path!r})", hint="There is no vision model yet.")


def separate_reasoning(expression: ir.Spoken, model_type: str = "") -> ir.Node:
    """Reasoning is not told apart inside programs yet."""
    raise NotBuilt("separate_reasoning", hint="The text of gen(...) has the reasoning in it; split it in the program.")


assert set(METHODS) == set(get_args(SelectMethod))
