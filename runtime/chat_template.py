"""A model's chat template: messages in, one text out, as Hugging Face's `apply_chat_template` renders it.

A leaf: knows no tokenizer and no wire format. Templates are programs from strangers, so they run in jinja2's immutable
sandbox. On top of the plain rendering:
- content lists are joined (text parts, nothing between), or kept as parts for templates that walk over parts;
- a tool call's arguments print the client's own bytes wherever the template prints them, whole or through `tojson`;
- a template that refuses consecutive messages of one role, or a system message, gets them merged;
- `guard_special` marks special tokens inside messages, so that a tokenizer can tell them from the template's own.
A template's failure is the caller's to mend, so it is a BadRequest, with the template's line.
"""

import functools
import json
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ramet.runtime.errors import BadRequest
from ramet.runtime.types import Message

GUARD = "\ufdd0"
"""Unicode noncharacter, never in text: stands inside a special token's name that is plain text."""

_CONTINUE = "\ufdd1 "
"""Ends the final message's content while it is rendered; the blank shows whether the template trims."""

_NOT_GUARDED = ("<think>", "</think>")
"""Templates look for these in an assistant's own words."""


_REASONING = ("reasoning_content", "thinking", "reasoning")
"""What clients call an assistant's reasoning; templates read the first or the second."""


class ChatTemplate:
    """A compiled template with the tokens that it names. Immutable; rendering depends on nothing but its arguments and,
    where a template asks for the date, on `clock`."""

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        named: Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """source          jinja2 text; None: the model has none, and rendering says what to do
        bos_token       the begin token's text, as the template may print it
        named           other templates of the model; "tool_use" is taken where there are tools
        special_tokens  further tokens that a template may name (pad_token, unk_token)
        """
        self.source = source
        self._tokens = {**(special_tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._environment = _environment(clock)
        self._main = None if source is None else _Compiled(self._environment, source)
        with_tools = (named or {}).get("tool_use")
        self._with_tools = None if with_tools is None else _Compiled(self._environment, with_tools)

    @property
    def is_missing(self) -> bool:
        return self._main is None

    def uses(self, variable: str) -> bool:
        """Whether the template reads this variable (`tools`, `documents`, `enable_thinking`): if not, giving it changes
        nothing."""
        return any(variable in compiled.variables for compiled in (self._main, self._with_tools) if compiled)

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **arguments: Any,
    ) -> str:
        """The prompt's text. `arguments` are further template variables (`enable_thinking`, `documents`).

        add_generation_prompt   open an assistant's turn at the end
        continue_final_message  leave the last message open, so that generation goes on with its words
        Raises BadRequest: no template, both flags, nothing to continue, or the template itself refuses.
        """
        compiled = self._chosen(tools)
        if add_generation_prompt and continue_final_message:
            raise BadRequest(
                expected="add_generation_prompt or continue_final_message, not both",
                got=True,
                at="$.continue_final_message",
            )
        plain = [_plain_message(message, compiled) for message in messages]
        if continue_final_message:
            _mark_last(plain)
        values = {"documents": None, **self._tokens, **arguments, "tools": list(tools) if tools else None}
        values["add_generation_prompt"] = add_generation_prompt
        text = _render_leniently(compiled, plain, values)
        return _cut_at_mark(text) if continue_final_message else text

    def _chosen(self, tools: Sequence[Mapping[str, Any]] | None) -> "_Compiled":
        if tools and self._with_tools is not None:
            return self._with_tools
        if self._main is None:
            raise BadRequest(
                expected="a model with a chat template",
                got=None,
                at="$.messages",
                hint="This model has none. Name one with --chat-template FILE (in Python: chat_template=text), "
                "or send a plain prompt.",
            )
        return self._main


def guard_special(value: Any, names: Iterable[str]) -> Any:
    """`value` (text, or messages with text at any depth) with GUARD inside each special token's name, which makes it
    plain text for `Tokenizer.encode_guarded`."""
    pattern = _guard_pattern(tuple(name for name in names if name not in _NOT_GUARDED))
    return _guarded(value, pattern)


@functools.lru_cache(maxsize=8)
def _guard_pattern(names: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))) if names else None


def _guarded(value: Any, pattern: re.Pattern[str] | None) -> Any:
    match value:
        case str():
            clean = value.replace(GUARD, "\ufffd")
            return clean if pattern is None else pattern.sub(lambda found: found[0][0] + GUARD + found[0][1:], clean)
        case Mapping():
            return {key: item if key == "role" else _guarded(item, pattern) for key, item in value.items()}
        case list() | tuple():
            return [_guarded(item, pattern) for item in value]
    return value


class _Compiled:
    """One template, compiled, and what can be told from its text."""

    def __init__(self, environment: jinja2.Environment, source: str) -> None:
        try:
            tree = environment.parse(source)
            self.template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise BadRequest(
                expected="a jinja2 chat template", got=str(error.message), at=f"--chat-template, line {error.lineno}"
            ) from error
        self.source = source
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
        self.wants_parts = _walks_over_content(tree)
        self.knows_developer = "developer" in source


def _walks_over_content(tree: jinja2.nodes.Template) -> bool:
    """Whether the template loops over a message's content without ever asking if it is a string."""
    if any(test.name == "string" for test in tree.find_all(jinja2.nodes.Test)):
        return False
    loops = (loop.iter for loop in tree.find_all(jinja2.nodes.For))
    return any(_names_content(what) for what in loops)


def _names_content(node: jinja2.nodes.Node) -> bool:
    match node:
        case jinja2.nodes.Getattr(attr="content"):
            return True
        case jinja2.nodes.Getitem(arg=jinja2.nodes.Const(value="content")):
            return True
    return False


class _Arguments(dict[str, Any]):
    """A tool call's arguments: a mapping to templates that look inside, the client's bytes where they are printed."""

    def __init__(self, text: str, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self._text = text

    def __str__(self) -> str:
        return self._text


def _plain_message(message: Message | Mapping[str, Any], compiled: _Compiled) -> dict[str, Any]:
    """A fresh dict as templates expect it: no None fields but content, which is a text ("" where there is none)."""
    if isinstance(message, Message):
        message = {field: getattr(message, field) for field in message.__struct_fields__}
    plain = {key: value for key, value in message.items() if value is not None}
    plain["role"] = _role(str(plain.get("role", "")), compiled)
    plain["content"] = _content(plain.get("content"), compiled)
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain |= {"reasoning_content": reasoning, "thinking": reasoning}
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in plain["tool_calls"]]
    else:
        plain.pop("tool_calls", None)
    return plain


def _role(role: str, compiled: _Compiled) -> str:
    """Newer names of old roles, for templates that don't know them."""
    if role == "developer" and not compiled.knows_developer:
        return "system"
    return "tool" if role == "function" else role


def _content(content: Any, compiled: _Compiled) -> Any:
    if compiled.wants_parts:
        return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    if not isinstance(content, list):
        return content if content is not None else ""
    return "".join(_part_text(part) for part in content)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise BadRequest(
            expected="content parts with text", got=kind, at="$.messages[].content", hint="This model reads text only."
        )
    return text


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI form; arguments become a mapping that prints as it came. Text that is no JSON object stays text."""
    plain = dict(call)
    function = plain.get("function")
    if isinstance(function, Mapping):
        plain["function"] = {**function, "arguments": _arguments(function.get("arguments", ""))}
    elif "arguments" in plain:
        plain["arguments"] = _arguments(plain["arguments"])
    return plain


def _arguments(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        value = json.loads(given)
    except ValueError:
        return given
    return _Arguments(given, value) if isinstance(value, dict) else given


# Merging -------------------------------------------------------------------------------------------------------------


def _render_leniently(compiled: _Compiled, messages: list[dict[str, Any]], values: Mapping[str, Any]) -> str:
    """As they are; where the template itself refuses, with roles merged; where it still does, without a system role."""
    try:
        return _render(compiled, messages, values)
    except _Refused as refusal:
        first = refusal
    merged = _merge_neighbours(messages)
    for attempt in (merged, _merge_neighbours(_fold_system(merged))):
        try:
            return _render(compiled, attempt, values)
        except _Refused:
            continue
    raise BadRequest(
        expected="messages that the model's chat template takes",
        got=str(first),
        at="$.messages",
        hint="That is the template's own word; change the order of roles, or pass --chat-template.",
    ) from first


def _merge_neighbours(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of one role become one message. Tool results stay apart: each answers a call of its own."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        before = merged[-1] if merged else None
        if before is not None and before["role"] == message["role"] != "tool":
            merged[-1] = _joined(before, message)
        else:
            merged.append(message)
    return merged


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    joined = {**first, **second, "content": _joined_content(first["content"], second["content"])}
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return {**joined, "tool_calls": calls} if calls else joined


def _joined_content(first: Any, second: Any) -> Any:
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    return f"{first}\n\n{second}" if first and second else first or second


def _fold_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """System messages become the beginning of the user message after them."""
    return [{**message, "role": "user"} if message["role"] == "system" else message for message in messages]


# Rendering -----------------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """The template called raise_exception: these messages are not to its liking."""


def _render(compiled: _Compiled, messages: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> str:
    try:
        return compiled.template.render({**values, "messages": list(messages)})
    except _Refused:
        raise
    except Exception as error:  # a template is a program: it can fail in any way, and none may stop the loop
        raise BadRequest(
            expected="messages that the model's chat template can render",
            got=f"{type(error).__name__}: {error}",
            at=f"--chat-template, line {_template_line(error)}",
            hint="The template fails there on these messages.",
        ) from error


def _template_line(error: Exception) -> int:
    """jinja2 rewrites tracebacks to the template's own lines."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return lines[-1] or 0 if lines else 0


def _mark_last(messages: list[dict[str, Any]]) -> None:
    content = messages[-1]["content"] if messages else ""
    if isinstance(content, list) and content:
        messages[-1]["content"] = [*content[:-1], {**content[-1], "text": content[-1].get("text", "") + _CONTINUE}]
    elif messages and isinstance(content, str):
        messages[-1]["content"] = content + _CONTINUE
    else:
        raise BadRequest(expected="a last message to continue", got=messages[-1:], at="$.continue_final_message")


def _cut_at_mark(text: str) -> str:
    place = text.rfind(_CONTINUE.strip())
    if place < 0:
        raise BadRequest(
            expected="a template that prints the last message",
            got="one that leaves it out",
            at="$.continue_final_message",
            hint="The chat template drops or changes this message, so it can't be continued.",
        )
    kept = text[:place]
    # where the template trims, it would have trimmed the words before the mark as well
    return kept if text[place : place + len(_CONTINUE)] == _CONTINUE else kept.rstrip()


def _environment(clock: Callable[[], datetime]) -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: clock().strftime(form)
    return environment


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, not HTML-safe JSON as jinja2's own filter; arguments of past tool calls print as they came."""
    if isinstance(value, _Arguments) and indent is None and separators is None and not sort_keys:
        return str(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationBlocks(Extension):
    """`{% generation %}` marks an assistant's words for training; here it prints its body."""

    tags = {"generation"}  # noqa: RUF012  the type is jinja2's

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
