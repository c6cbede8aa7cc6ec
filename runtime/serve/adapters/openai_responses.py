"""`/v1/responses`: input items become chat messages, parts become output items, whole or as events."""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from ramet.runtime.errors import BadRequest, RametError
from ramet.runtime.serve import sse
from ramet.runtime.serve.adapters.openai_chat import ChatRequest, conclude, extensions, new_choices
from ramet.runtime.serve.choice import ChoiceState
from ramet.runtime.serve.context import ServeContext, new_id
from ramet.runtime.serve.messages import text_of
from ramet.runtime.serve.parts import CallArguments, CallBegin, CallEnd, Part, ReasoningPart, TextPart
from ramet.runtime.serve.protocols.openai_chat import ChatBody, ChatMessage, FunctionCall, ToolCall
from ramet.runtime.serve.protocols.responses import ResponsesBody
from ramet.runtime.serve.turn import Choice
from ramet.runtime.serve.usage import responses_usage, total

Events = AsyncIterator[Choice]


def to_chat_body(body: ResponsesBody, history: list[Any]) -> ChatBody:
    """The same request in chat's words. `history` is the stored conversation of `previous_response_id`."""
    items = [*history, *input_items(body)]
    messages = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    messages += to_messages(items)
    return ChatBody(
        model=body.model,
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        stop=body.stop,
        logprobs=True if body.top_logprobs else None,
        top_logprobs=body.top_logprobs,
        tools=[tool for tool in body.tools or [] if isinstance(tool, dict) and tool.get("type") == "function"] or None,
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(body.text),
        json_options=body.json_options,
        return_timings=body.return_timings,
        explain=body.explain,
        metadata=body.metadata,
        user=body.user,
        prompt_cache_key=body.prompt_cache_key,
        priority=body.priority,
        cache_salt=body.cache_salt,
        request_id=new_id("resp_"),
    )


def input_items(body: ResponsesBody) -> list[Any]:
    if body.input is None:
        raise BadRequest(expected="text or a list of items", got=None, at="$.input")
    if isinstance(body.input, str):
        return [{"type": "message", "role": "user", "content": body.input}]
    return body.input


def to_messages(items: list[Any]) -> list[ChatMessage]:
    """Calls that follow each other are one assistant message; reasoning belongs to the message after it."""
    messages: list[ChatMessage] = []
    reasoning: str | None = None
    for index, item in enumerate(items):
        at = f"$.input[{index}]"
        if not isinstance(item, dict):
            raise BadRequest(expected="an object", got=item, at=at)
        match item.get("type", "message"):
            case "message":
                role = str(item.get("role") or "user")
                message = ChatMessage(role=role, content=text_of(item.get("content"), f"{at}.content"))
                if role == "assistant":
                    message.reasoning_content, reasoning = reasoning, None
                messages.append(message)
            case "function_call":
                reasoning = _add_call(messages, item, reasoning, after_result=_is_result(items, index - 1))
            case "function_call_output":
                messages.append(_output(item, at))
            case "reasoning":
                reasoning = _reasoning_text(item)
            case _:
                continue  # items of tools that OpenAI runs itself: they say nothing to a text model
    return messages


def _is_result(items: list[Any], index: int) -> bool:
    return index >= 0 and isinstance(items[index], dict) and items[index].get("type") == "function_call_output"


def _add_call(
    messages: list[ChatMessage], item: dict[str, Any], reasoning: str | None, *, after_result: bool
) -> str | None:
    call = ToolCall(
        id=item.get("call_id"),
        type="function",
        function=FunctionCall(name=item.get("name"), arguments=item.get("arguments")),
    )
    if messages and messages[-1].role == "assistant" and not after_result:
        messages[-1].tool_calls = [*(messages[-1].tool_calls or []), call]
        return reasoning
    messages.append(ChatMessage(role="assistant", content=None, tool_calls=[call], reasoning_content=reasoning))
    return None


def _output(item: dict[str, Any], at: str) -> ChatMessage:
    output = item.get("output")
    text = output if isinstance(output, str) else text_of(output, f"{at}.output")
    return ChatMessage(role="tool", content=text, tool_call_id=item.get("call_id"))


def _reasoning_text(item: dict[str, Any]) -> str | None:
    parts = item.get("content") or item.get("summary") or []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict)) or None


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return str(choice.get("mode") or "auto")
    return choice


def _format(text: dict[str, Any] | None) -> dict[str, Any] | None:
    wanted = (text or {}).get("format")
    if not isinstance(wanted, dict) or wanted.get("type") in (None, "text"):
        return None
    return wanted


def response_object(
    request: ChatRequest, context: ServeContext, body: ResponsesBody, *, status: str, output: list[dict[str, Any]]
) -> dict[str, Any]:
    """The response as it stands; usage and details are filled in at the end."""
    return {
        "id": request.turn.request_id,
        "object": "response",
        "created_at": request.created,
        "status": status,
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": context.served_name,
        "output": output,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "store": body.store is not False,
        "temperature": body.temperature if body.temperature is not None else 1.0,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [_shown_tool(tool) for tool in body.tools or []],
        "top_p": body.top_p if body.top_p is not None else 1.0,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "metadata": body.metadata or {},
        "user": body.user,
    }


def _shown_tool(tool: Any) -> Any:
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {"strict": False, "parameters": {}, **tool}
    return tool


def finish(
    response: dict[str, Any],
    state: ChoiceState,
    request: ChatRequest,
    context: ServeContext,
    output: list[dict[str, Any]],
) -> dict[str, Any]:
    """The response once it has ended."""
    response = {**response, "output": output, "status": "completed"}
    if state.finish_reason == "length":
        response |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    if state.finished is not None:
        response["usage"] = responses_usage(total([state.finished]))
    return response | extensions([state], request, context)


async def collect(
    events: AsyncIterator[Choice], request: ChatRequest, context: ServeContext, body: ResponsesBody
) -> dict[str, Any]:
    """The whole response: the same items that the stream would have built."""
    (state,) = new_choices(request, context)
    writer = ItemWriter(state)
    async for _, event in events:
        for part in state.take(event):
            writer.write(part)
    writer.end()
    await conclude(request, context, [state])
    return finish(
        response_object(request, context, body, status="in_progress", output=[]), state, request, context, writer.output
    )


async def stream(
    events: AsyncIterator[Choice], request: ChatRequest, context: ServeContext, body: ResponsesBody, *, keep: Any
) -> AsyncIterator[bytes]:
    """The events of clients.md 2. `keep(response)` is called with the final response."""
    (state,) = new_choices(request, context)
    writer, numbers = ItemWriter(state), count()
    response = response_object(request, context, body, status="in_progress", output=[])

    def block(event: dict[str, Any]) -> bytes:
        return sse.named({**event, "sequence_number": next(numbers)})

    yield block({"type": "response.created", "response": response})
    yield block({"type": "response.in_progress", "response": response})
    try:
        async for _, event in events:
            for written in [item for part in state.take(event) for item in writer.write(part)]:
                yield block(written)
    except RametError as error:
        failed = {**response, "status": "failed", "error": {"code": error.code, "message": str(error)}}
        yield block({"type": "response.failed", "response": failed})
        return
    for written in writer.end():
        yield block(written)
    await conclude(request, context, [state])
    response = finish(response, state, request, context, writer.output)
    keep(response)
    yield block({"type": f"response.{response['status']}", "response": response})


class ItemWriter:
    """Parts -> output items and their events; one item is open at a time."""

    def __init__(self, state: ChoiceState) -> None:
        self._state = state
        self.output: list[dict[str, Any]] = []
        self._open: str | None = None
        self._text = ""
        """Of the open message or reasoning item."""

    def write(self, part: Part) -> list[dict[str, Any]]:
        match part:
            case TextPart(text):
                begun = self._begin_message()
                self._text += text
                return [*begun, self._event("output_text.delta", delta=text, content_index=0, logprobs=[])]
            case ReasoningPart(text):
                begun = self._begin_reasoning()
                self._text += text
                return [*begun, self._event("reasoning_text.delta", delta=text, content_index=0)]
            case CallBegin(call, name):
                return self._begin_call(call, name)
            case CallArguments(_, text):
                return [self._event("function_call_arguments.delta", delta=text)]
            case CallEnd():
                return self._close()
            case _:
                return []

    def end(self) -> list[dict[str, Any]]:
        """Close what is open; an answer without any item gets an empty message."""
        if not self.output:
            return [*self._begin_message(), *self._close()]
        return self._close()

    def _begin_message(self) -> list[dict[str, Any]]:
        if self._open == "message":
            return []
        item = {"type": "message", "role": "assistant", "content": []}
        added = self._begin("message", "msg_", item)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [*added, self._event("content_part.added", content_index=0, part=part)]

    def _begin_reasoning(self) -> list[dict[str, Any]]:
        if self._open == "reasoning":
            return []
        return self._begin("reasoning", "rs_", {"type": "reasoning", "summary": [], "content": []})

    def _begin_call(self, call: int, name: str) -> list[dict[str, Any]]:
        identity = self._state.calls[call].id
        item = {"type": "function_call", "call_id": identity, "name": name, "arguments": ""}
        return self._begin(f"call {call}", "fc_", item)

    def _begin(self, kind: str, prefix: str, item: dict[str, Any]) -> list[dict[str, Any]]:
        closed = self._close()
        self._open, self._text = kind, ""
        self.output.append({"id": new_id(prefix), **item, "status": "in_progress"})
        return [*closed, self._item_event("output_item.added")]

    def _close(self) -> list[dict[str, Any]]:
        kind, self._open = self._open, None
        if kind is None:
            return []
        item = self.output[-1]
        item["status"] = "completed"
        done: list[dict[str, Any]] = []
        if kind == "message":
            part = {"type": "output_text", "text": self._text, "annotations": [], "logprobs": []}
            item["content"] = [part]
            done = [
                self._event("output_text.done", text=self._text, content_index=0, logprobs=[]),
                self._event("content_part.done", content_index=0, part=part),
            ]
        elif kind == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": self._text}]
            done = [self._event("reasoning_text.done", text=self._text, content_index=0)]
        else:
            call = self._state.calls[int(kind.removeprefix("call "))]
            item["arguments"] = call.arguments
            done = [self._event("function_call_arguments.done", arguments=call.arguments, name=call.name)]
        return [*done, self._item_event("output_item.done")]

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {
            "type": f"response.{kind}",
            "output_index": len(self.output) - 1,
            "item_id": self.output[-1]["id"],
            **fields,
        }

    def _item_event(self, kind: str) -> dict[str, Any]:
        return {"type": f"response.{kind}", "output_index": len(self.output) - 1, "item": dict(self.output[-1])}
