"""`/v1/messages`: Anthropic's dialect, a chat body on the way in, block events on the way out."""

import json
from collections.abc import AsyncIterator
from typing import Any

from ramet.runtime.errors import BadRequest
from ramet.runtime.serve import sse
from ramet.runtime.serve.adapters.openai_chat import ChatRequest, conclude, extensions, new_choices
from ramet.runtime.serve.choice import ChoiceState
from ramet.runtime.serve.context import ServeContext, new_id
from ramet.runtime.serve.messages import strip_nonce, text_of
from ramet.runtime.serve.parts import CallArguments, CallBegin, Part, ReasoningPart, TextPart
from ramet.runtime.serve.protocols.anthropic import MessagesBody
from ramet.runtime.serve.protocols.openai_chat import ChatBody, ChatMessage, FunctionCall, ToolCall
from ramet.runtime.serve.turn import Choice
from ramet.runtime.serve.usage import anthropic_usage, total
from ramet.runtime.types import Finished, Started, Usage

CALL_PREFIX = "toolu_"


def to_chat_body(body: MessagesBody, *, needs_max_tokens: bool = True, strip_nonces: bool = True) -> ChatBody:
    """The same request in chat's words."""
    if body.max_tokens is None and needs_max_tokens:
        raise BadRequest(expected="an integer", got=None, at="$.max_tokens", hint="Anthropic's API requires it.")
    kind = (body.tool_choice or {}).get("type")
    metadata = body.metadata or {}
    return ChatBody(
        model=body.model,
        messages=_messages(body, strip_nonces),
        max_tokens=body.max_tokens,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=list(body.stop_sequences or []),
        tools=_tools(body.tools),
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=not (body.tool_choice or {}).get("disable_parallel_tool_use") if kind else None,
        response_format=_format(body),
        json_options=body.json_options,
        return_timings=body.return_timings,
        explain=body.explain,
        request_id=new_id("msg_"),
        session_id=body.session_id or metadata.get("user_id"),
        priority=body.priority,
        cache_salt=body.cache_salt,
    )


def _messages(body: MessagesBody, strip_nonces: bool) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    system = _system(body.system, strip_nonces)
    if system:
        messages.append(ChatMessage(role="system", content=system))
    for index, message in enumerate(body.messages):
        at = f"$.messages[{index}].content"
        if message.role not in ("user", "assistant", "system"):
            raise BadRequest(expected="user or assistant", got=message.role, at=f"$.messages[{index}].role")
        if isinstance(message.content, list):
            messages += _from_blocks(message.role, message.content, at)
        else:
            messages.append(ChatMessage(role=message.role, content=message.content or ""))
    return messages


def _system(system: str | list[Any] | None, strip_nonces: bool) -> str:
    """Blocks are joined; the first one may be nothing but a client's nonce."""
    blocks = [system] if isinstance(system, str) else system or []
    texts = [text_of([block], f"$.system[{index}]") for index, block in enumerate(blocks)]
    if strip_nonces and texts:
        texts[0] = strip_nonce(texts[0])
    return "\n".join(text for text in texts if text)


def _from_blocks(role: str, blocks: list[Any], at: str) -> list[ChatMessage]:
    """One Anthropic message is a tool message for each result in it, then one of the rest."""
    results: list[ChatMessage] = []
    text: list[str] = []
    calls: list[ToolCall] = []
    reasoning: list[str] = []
    for index, block in enumerate(blocks):
        kind = block.get("type") if isinstance(block, dict) else None
        match kind:
            case "tool_result":
                results.append(_result(block, f"{at}[{index}]"))
            case "tool_use":
                arguments = json.dumps(block.get("input") or {}, ensure_ascii=False, separators=(", ", ": "))
                call = FunctionCall(name=block.get("name"), arguments=arguments)
                calls.append(ToolCall(id=block.get("id"), type="function", function=call))
            case "thinking":
                reasoning.append(str(block.get("thinking") or ""))
            case "redacted_thinking":
                continue
            case _:
                text.append(text_of([block], f"{at}[{index}]"))
    rest = ChatMessage(
        role=role,
        content="".join(text),
        tool_calls=calls or None,
        reasoning_content="".join(reasoning) or None,
    )
    return [*results, rest] if text or calls or not results else results


def _result(block: dict[str, Any], at: str) -> ChatMessage:
    content = block.get("content")
    text = content if isinstance(content, str) else text_of(content, f"{at}.content")
    return ChatMessage(role="tool", content=text, tool_call_id=block.get("tool_use_id"))


def _tools(tools: list[Any] | None) -> list[Any] | None:
    """Client tools have a schema; Anthropic's own server tools have a type of theirs and are ignored."""
    if not tools:
        return None
    return [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description", ""),
                "parameters": tool["input_schema"],
            },
        }
        for tool in tools
        if isinstance(tool, dict) and "input_schema" in tool
    ]


def _tool_choice(choice: dict[str, Any] | None) -> str | dict[str, Any] | None:
    match (choice or {}).get("type"):
        case None:
            return None
        case "auto":
            return "auto"
        case "any":
            return "required"
        case "none":
            return "none"
        case "tool":
            return {"type": "function", "function": {"name": (choice or {}).get("name")}}
        case other:
            raise BadRequest(expected="auto, any, tool or none", got=other, at="$.tool_choice.type")


def _format(body: MessagesBody) -> dict[str, Any] | None:
    wanted = body.output_format or (body.output_config.format if body.output_config else None)
    if wanted and wanted.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {"name": "output", "schema": wanted.get("schema")}}
    return None


def stop_reason(state: ChoiceState) -> tuple[str, str | None]:
    """Anthropic's word for it, and the stop sequence where one was met."""
    if state.finish_reason == "tool_calls":
        return "tool_use", None
    if state.finish_reason == "length":
        return "max_tokens", None
    stop = state.finished.stop if state.finished else None
    return ("stop_sequence", stop) if isinstance(stop, str) else ("end_turn", None)


async def collect(events: AsyncIterator[Choice], request: ChatRequest, context: ServeContext) -> dict[str, Any]:
    """The whole message."""
    (state,) = new_choices(request, context, CALL_PREFIX)
    async for _, event in events:
        state.take(event)
    await conclude(request, context, [state])
    reason, stop = stop_reason(state)
    usage = total([state.finished] if state.finished else [])
    message = _message(request, context, _blocks(state), reason, stop, anthropic_usage(usage))
    return message | extensions([state], request, context)


def _message(
    request: ChatRequest,
    context: ServeContext,
    content: list[dict[str, Any]],
    reason: str | None,
    stop: str | None,
    usage: dict[str, Any],
) -> dict[str, Any]:
    return {
        "id": request.turn.request_id,
        "type": "message",
        "role": "assistant",
        "model": context.served_name,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": usage,
    }


def _blocks(state: ChoiceState) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if state.reasoning:
        blocks.append({"type": "thinking", "thinking": state.reasoning, "signature": ""})
    if state.content or not state.calls:
        blocks.append({"type": "text", "text": state.content or "", "citations": None})
    uses = ({"type": "tool_use", "id": c.id, "name": c.name, "input": _input(c.arguments)} for c in state.calls)
    return [*blocks, *uses]


def _input(arguments: str) -> Any:
    """The arguments as an object; what was cut short or malformed is kept as text rather than lost."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {"_raw": arguments}


async def stream(events: AsyncIterator[Choice], request: ChatRequest, context: ServeContext) -> AsyncIterator[bytes]:
    """message_start, the blocks, message_delta, message_stop."""
    (state,) = new_choices(request, context, CALL_PREFIX)
    writer = BlockWriter(state)
    started = False
    async for _, event in events:
        if not started and not isinstance(event, Started | Finished) and not hasattr(event, "tokens"):
            continue  # queued, paused: nothing to tell yet
        if not started:
            started = True
            yield sse.named(_start(request, context, event))
        for block in [block for part in state.take(event) for block in writer.write(part)]:
            yield sse.named(block)
    await conclude(request, context, [state])
    for block in writer.end():
        yield sse.named(block)
    reason, stop = stop_reason(state)
    usage = anthropic_usage(total([state.finished] if state.finished else []))
    delta = {"stop_reason": reason, "stop_sequence": stop}
    yield sse.named({"type": "message_delta", "delta": delta, "usage": usage, **extensions([state], request, context)})
    yield sse.named({"type": "message_stop"})


def _start(request: ChatRequest, context: ServeContext, event: Any) -> dict[str, Any]:
    cached = event.cached_tokens if isinstance(event, Started) else 0
    usage = anthropic_usage(Usage(prompt_tokens=len(request.turn.prompt), cached_tokens=cached))
    return {"type": "message_start", "message": _message(request, context, [], None, None, usage)}


class BlockWriter:
    """Parts -> content_block events; one block is open at a time."""

    def __init__(self, state: ChoiceState) -> None:
        self._state = state
        self._index = -1
        self._open: str | None = None

    def write(self, part: Part) -> list[dict[str, Any]]:
        match part:
            case TextPart(text):
                return self._delta("text", {"type": "text", "text": ""}, {"type": "text_delta", "text": text})
            case ReasoningPart(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return self._delta("thinking", block, {"type": "thinking_delta", "thinking": text})
            case CallBegin(call, name):
                use = {"type": "tool_use", "id": self._state.calls[call].id, "name": name, "input": {}}
                return self._begin(f"tool_use {call}", use)
            case CallArguments(_, text):
                return [self._delta_event({"type": "input_json_delta", "partial_json": text})]
            case _:
                return self._stop()

    def end(self) -> list[dict[str, Any]]:
        """Close what is open; an answer without any block gets an empty one."""
        if self._index < 0:
            return [*self._begin("text", {"type": "text", "text": ""}), *self._stop()]
        return self._stop()

    def _delta(self, kind: str, block: dict[str, Any], delta: dict[str, Any]) -> list[dict[str, Any]]:
        return [*self._begin(kind, block), self._delta_event(delta)]

    def _begin(self, kind: str, block: dict[str, Any]) -> list[dict[str, Any]]:
        if self._open == kind:
            return []
        stopped = self._stop()
        self._index, self._open = self._index + 1, kind
        return [*stopped, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _delta_event(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        signed = [self._delta_event({"type": "signature_delta", "signature": ""})] if self._open == "thinking" else []
        self._open = None
        return [*signed, {"type": "content_block_stop", "index": self._index}]
