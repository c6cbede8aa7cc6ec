"""Client messages -> the messages that a chat template gets: parts joined, nulls gone, nonces stripped, tools
described.

Pure. What the client wrote is kept byte for byte, arguments of past calls above all (clients.md R7, R8, R18, R19).
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from ramet.runtime.errors import BadRequest, NotBuilt
from ramet.runtime.serve.protocols.openai_chat import ChatMessage, FunctionCall, ToolCall
from ramet.runtime.serve.tools.base import Call, Tool, ToolFormat

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

_NONCE = re.compile(r"^x-anthropic-billing-header:[^\n]*(?:\n|$)")


def to_template_messages(
    messages: Sequence[ChatMessage], tools: Sequence[Tool], tool_format: ToolFormat, *, strip_nonces: bool = True
) -> list[dict[str, Any]]:
    """One dict a message, in the form that Hugging Face templates expect."""
    if not messages:
        raise BadRequest(expected="at least one message", got="[]", at="$.messages")
    converted = [_message(message, index) for index, message in enumerate(messages)]
    if strip_nonces and converted[0]["role"] == "system":
        converted[0]["content"] = strip_nonce(converted[0]["content"])
    described = tool_format.describe(tools) if tools else None
    if described is not None:
        _add_to_system(converted, described)
    return converted


def with_written_calls(messages: Sequence[dict[str, Any]], tool_format: ToolFormat) -> list[dict[str, Any]]:
    """Where the template knows no calls, past ones become the assistant's words.

    Comes after our own turns were looked up: they are known by what the client sent, not by how it is written down.
    """
    return [_written(message, tool_format) if message.get("tool_calls") else message for message in messages]


def _written(message: dict[str, Any], tool_format: ToolFormat) -> dict[str, Any]:
    functions = [(call["id"], call["function"]) for call in message["tool_calls"]]
    text = tool_format.render_calls([Call(name, f["name"], f["arguments"]) for name, f in functions])
    if text is None:
        return message
    return {**message, "content": "\n".join(filter(None, [message["content"], text]))}


def text_of(content: str | list[Any] | None, at: str) -> str:
    """The text of a message's content; parts are joined without a separator."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{at}[{index}]") for index, part in enumerate(content))


def strip_nonce(text: str) -> str:
    """Without the billing line that Claude Code puts first, new in each request (clients.md 6)."""
    return _NONCE.sub("", text)


def to_tools(tools: list[Any] | None, functions: list[Any] | None = None) -> list[Tool]:
    """The function tools of a request; other kinds are ignored, for clients send theirs to every server."""
    found: list[Tool] = []
    wrapped = [{"type": "function", "function": function} for function in functions or []]
    for index, raw in enumerate([*(tools or []), *wrapped]):
        if not isinstance(raw, dict):
            raise BadRequest(expected="an object", got=raw, at=f"$.tools[{index}]")
        if raw.get("type", "function") != "function":
            continue
        function = raw.get("function", raw)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise BadRequest(expected="a function with a name", got=raw, at=f"$.tools[{index}].function.name")
        found.append(_tool(function, index))
    return found


def with_sorted_keys(tools: Sequence[Tool]) -> list[Tool]:
    """As the model is shown them where `sort_tool_keys` is on; lists keep their order, and so do the tools."""
    return [tool._replace(raw=_sorted(tool.raw), parameters=_sorted(tool.parameters)) for tool in tools]


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _tool(function: dict[str, Any], index: int) -> Tool:
    parameters = function.get("parameters", function.get("input_schema")) or {}
    if not isinstance(parameters, dict):
        raise BadRequest(expected="a JSON Schema", got=parameters, at=f"$.tools[{index}].function.parameters")
    return Tool(
        name=function["name"],
        description=str(function.get("description") or ""),
        parameters=parameters,
        strict=bool(function.get("strict")),
        raw={"type": "function", "function": {k: v for k, v in function.items() if k not in ("type", "strict")}},
    )


def _message(message: ChatMessage, index: int) -> dict[str, Any]:
    at = f"$.messages[{index}]"
    if message.role not in ROLES:
        raise BadRequest(expected=f"one of {', '.join(ROLES)}", got=message.role, at=f"{at}.role")
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    converted: dict[str, Any] = {"role": role, "content": text_of(message.content, f"{at}.content")}
    calls = [_call(call, f"{at}.tool_calls[{i}]") for i, call in enumerate(_tool_calls(message))]
    if calls:
        converted["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    reasoning = message.reasoning_content or message.reasoning or message.thinking
    if reasoning:
        converted["reasoning_content"] = reasoning
    if message.name:
        converted["name"] = message.name
    if message.tool_call_id:
        converted["tool_call_id"] = message.tool_call_id
    return converted


def _tool_calls(message: ChatMessage) -> list[ToolCall]:
    if message.function_call is not None:
        return [ToolCall(id="", type="function", function=message.function_call)]
    return message.tool_calls or []


def _call(call: ToolCall, at: str) -> Call:
    function = call.function or FunctionCall()
    if not function.name:
        raise BadRequest(expected="a function name", got=function.name, at=f"{at}.function.name")
    arguments = function.arguments
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return Call(call.id or "", function.name, arguments or "{}")


def _add_to_system(messages: list[dict[str, Any]], text: str) -> None:
    if messages[0]["role"] == "system":
        messages[0]["content"] = f"{messages[0]['content']}\n\n{text}".lstrip("\n")
    else:
        messages.insert(0, {"role": "system", "content": text})


def _part_text(part: Any, at: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise BadRequest(expected="a content part", got=part, at=at)
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text", "refusal", None):
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise BadRequest(expected="text", got=text, at=f"{at}.text")
        return text
    if kind in ("image_url", "input_image", "image", "input_audio", "audio", "file", "input_file", "document"):
        raise NotBuilt(f"content of type {kind}", hint="This server runs text models; send text parts.")
    return ""
