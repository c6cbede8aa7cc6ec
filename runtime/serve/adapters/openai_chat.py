"""`/v1/chat/completions`: body -> Turn, events -> one answer or a stream of chunks. No HTTP, no engine."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from ramet.constrained.spec import OneOf, Spec
from ramet.runtime.errors import BadRequest, ContextOverflow
from ramet.runtime.serve import sse
from ramet.runtime.serve.adapters import fields
from ramet.runtime.serve.choice import ChoiceState
from ramet.runtime.serve.context import ServeContext, new_id, now
from ramet.runtime.serve.deferred import grammar_notes
from ramet.runtime.serve.history import head_of
from ramet.runtime.serve.identify import Asker, program_spec, tenant_of
from ramet.runtime.serve.logprobs import chat_logprobs, prompt_logprobs
from ramet.runtime.serve.messages import (
    to_template_messages,
    to_tools,
    with_sorted_keys,
    with_written_calls,
)
from ramet.runtime.serve.parts import CallArguments, CallBegin, Part, ReasoningPart, TextPart
from ramet.runtime.serve.prompt import Rendered
from ramet.runtime.serve.protocols.openai_chat import ChatBody
from ramet.runtime.serve.reasoning import think_tags
from ramet.runtime.serve.splice import OwnTurn
from ramet.runtime.serve.tools.base import Tool
from ramet.runtime.serve.turn import Choice, Turn
from ramet.runtime.serve.usage import openai_usage, timings, total
from ramet.runtime.types import Delta, Finished, GenerateSpec


class Wants(NamedTuple):
    """What Ramet adds for those who ask."""

    timings: bool
    account: bool
    """Of the cache."""
    token_ids: bool
    prompt_token_ids: bool
    prompt_logprobs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A chat body, understood: what any chat dialect needs to run and to answer."""

    turn: Turn
    tools: list[Tool]
    wants_calls: bool
    """`tool_choice` is not none."""
    thinks: bool
    """Reasoning is told apart from the answer."""
    reasoning_open: bool
    """The prompt ends inside a think block."""
    tenant: str
    created: int
    num_top: int | None
    rendered: Rendered
    wants: Wants


def to_request(body: ChatBody, context: ServeContext, asker: Asker) -> ChatRequest:
    """Everything that can be refused is refused here, before the engine hears of it."""
    fields.require_trusted(body.chat_template, "$.chat_template", context.config)
    tools = to_tools(body.tools, body.functions)
    choice = tool_choice(body.tool_choice if body.tool_choice is not None else body.function_call, tools)
    shown = with_sorted_keys(tools) if context.config.sort_tool_keys else tools
    messages = to_template_messages(body.messages, shown, context.tool_format, strip_nonces=context.config.strip_nonces)
    tenant = tenant_of(asker, body.cache_salt, context.config)
    rendered = _with_prompt_options(render(context, messages, shown, body, tenant), body, context)
    max_tokens = room(rendered, body.max_completion_tokens or body.max_tokens, context)
    num_top = top_logprobs(body, context)
    spec = generate_spec(
        body, context, max_tokens=max_tokens, num_top=num_top, grammar=grammar_of(body, context, tools, choice)
    )
    request_id = body.request_id or body.rid or new_id("chatcmpl-")
    thinks = context.thinks and body.separate_reasoning is not False
    return ChatRequest(
        turn=Turn(
            request_id=request_id,
            program=program_spec(body, messages, tools, asker, tenant, context),
            prompt=rendered.tokens,
            spec=spec,
            n=fields.integer(body.n, "n", 1, context.config.max_choices) or 1,
        ),
        tools=tools,
        wants_calls=choice != "none",
        thinks=thinks,
        reasoning_open=thinks and think_tags.starts_inside(rendered.text),
        tenant=tenant,
        created=now(),
        num_top=num_top,
        rendered=rendered,
        wants=Wants(
            timings=bool(body.return_timings),
            account=bool(body.explain),
            token_ids=bool(body.return_token_ids),
            prompt_token_ids=bool(body.return_token_ids or body.return_prompt_token_ids),
            prompt_logprobs=body.prompt_logprobs is not None,
        ),
    )


def _with_prompt_options(rendered: Rendered, body: ChatBody, context: ServeContext) -> Rendered:
    """The prompt as vLLM's fields want it: with the token that begins a text, and no longer than so many tokens."""
    tokens, begin = rendered.tokens, context.renderer.tokenizer.bos_id
    if body.add_special_tokens and begin is not None and tokens[:1] != [begin]:
        tokens = [begin, *tokens]
    keep = fields.integer(body.truncate_prompt_tokens, "truncate_prompt_tokens", 1, 2**31 - 1)
    tokens = tokens[-keep:] if keep else tokens
    return rendered if tokens is rendered.tokens else replace(rendered, tokens=tokens, head="")


def render(
    context: ServeContext, messages: list[dict[str, Any]], tools: list[Tool], body: ChatBody, tenant: str
) -> Rendered:
    """The prompt's tokens, with our own turns spliced in where the client echoes them."""
    turns: dict[int, Sequence[int]] = {}
    if context.config.splice and body.chat_template is None:
        for index, message in enumerate(messages):
            if message["role"] == "assistant" and (own := context.own_turns.find(tenant, message)) is not None:
                turns[index] = own.tokens
    continues = bool(body.continue_final_message)
    if continues and turns.get(len(messages) - 1) is not None:
        turns.pop(len(messages) - 1)
    native = context.tool_format.describe(tools) is None if tools else True
    written = with_written_calls(messages, context.tool_format)
    given: dict[str, Any] = {
        "tools": [tool.raw for tool in tools] if tools and native else None,
        "documents": body.documents,
        **(body.chat_template_kwargs or {}),
    }
    opens = body.add_generation_prompt if body.add_generation_prompt is not None else not continues
    if context.config.append_history and body.chat_template is None and opens:
        kept = _appended(context, written, turns, given, tenant) if turns else None
        rendered = kept or context.renderer.render(written, turns=turns, add_generation_prompt=True, **given)
        return replace(rendered, head=head_of(written, turns, given))
    return context.renderer.render(
        written,
        turns=turns,
        template=context.renderer.template_from(body.chat_template) if body.chat_template else None,
        add_generation_prompt=opens,
        continue_final_message=continues,
        **given,
    )


def _appended(
    context: ServeContext,
    messages: list[dict[str, Any]],
    turns: dict[int, Sequence[int]],
    given: dict[str, Any],
    tenant: str,
) -> Rendered | None:
    """The conversation up to our last answer as it was run, and what came after it."""
    last = max(turns)
    before = context.past_prompts.find(tenant, head_of(messages[:last], turns, given), turns[last])
    if before is None:
        return None
    return context.renderer.append(before, turns[last], messages, last, add_generation_prompt=True, **given)


def room(rendered: Rendered, wanted: float | None, context: ServeContext) -> int:
    """How many tokens may be generated: what was asked, clamped to what the context leaves (R5)."""
    left = context.card.context_length - len(rendered.tokens)
    if left < 1:
        raise ContextOverflow(num_tokens=len(rendered.tokens), limit=context.card.context_length)
    asked = fields.integer(wanted, "max_tokens", 0, 2**31 - 1)
    return left if asked is None else min(asked, left)


def top_logprobs(body: ChatBody, context: ServeContext) -> int | None:
    """None: none asked for. 0: the sampled tokens' alone."""
    top = fields.integer(body.top_logprobs, "top_logprobs", 0, context.config.max_logprobs)
    if not body.logprobs:
        if top:
            raise BadRequest(expected="logprobs: true beside it", got=body.logprobs, at="$.top_logprobs")
        return None
    return top or 0


def generate_spec(
    body: ChatBody, context: ServeContext, *, max_tokens: int, num_top: int | None, grammar: Spec | None
) -> GenerateSpec:
    vocabulary_size = context.card.vocabulary_size
    skip_special = body.skip_special_tokens if body.skip_special_tokens is not None else True
    if grammar is None and body.tools and context.tool_format.SPECIAL_MARKS:
        skip_special = False
    return GenerateSpec(
        max_tokens=max_tokens,
        min_tokens=fields.integer(body.min_tokens, "min_tokens", 0, max(max_tokens, 0)) or 0,
        stop=fields.to_stops(body.stop, context.config),
        include_stop=bool(body.include_stop_str_in_output or body.no_stop_trim),
        stop_token_ids=fields.to_stop_ids(body, vocabulary_size),
        ignore_eos=bool(body.ignore_eos),
        skip_special_tokens=skip_special,
        sampling=fields.to_sampling(body, vocabulary_size=vocabulary_size, tokenizer=context.renderer.tokenizer),
        grammar=grammar,
        grammar_drafts=body.grammar_drafts is not False,
        logprobs=num_top,
        prompt_logprobs=fields.integer(body.prompt_logprobs, "prompt_logprobs", 0, context.config.max_logprobs),
        timeout_s=body.timeout,
        stream_interval=fields.integer(body.stream_interval, "stream_interval", 1, 1024) or 1,
    )


def tool_choice(choice: str | dict[str, Any] | None, tools: list[Tool]) -> str:
    """auto, required, none, or `=NAME` for one that was named."""
    if choice is None:
        return "auto" if tools else "none"
    if isinstance(choice, str):
        wanted = {"any": "required"}.get(choice, choice)
        if wanted not in ("auto", "required", "none"):
            raise BadRequest(expected="auto, required, none or a function", got=choice, at="$.tool_choice")
        if wanted == "required" and not tools:
            raise BadRequest(expected="tools beside tool_choice required", got="none", at="$.tools")
        return wanted if tools else "none"
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    if name is None and choice.get("type") in ("auto", "required", "none", "any"):
        return tool_choice(choice["type"], tools)
    if name not in {tool.name for tool in tools}:
        raise BadRequest(expected=f"one of {[tool.name for tool in tools]}", got=name, at="$.tool_choice.function.name")
    return f"={name}"


def grammar_of(body: ChatBody, context: ServeContext, tools: list[Tool], choice: str) -> Spec | None:
    """What the output must obey: the calls that tool_choice demands, else the response format."""
    parallel = body.parallel_tool_calls is not False
    if choice == "required":
        return _calls(body, context, tools, at_least_one=True, parallel=parallel)
    if choice.startswith("="):
        named = [tool for tool in tools if tool.name == choice[1:]]
        return _calls(body, context, named, at_least_one=True, parallel=False)
    wanted = fields.to_grammar(body, context.config)
    if choice == "none":  # the tools stay in the prompt, or a last answer in words would find nothing in the cache
        return context.tool_format.text_only() if tools and wanted is None else wanted
    if wanted is not None:  # an answer in the asked form, or calls
        return OneOf(items=(wanted, _calls(body, context, tools, at_least_one=True, parallel=parallel)))
    free = context.tool_format.HAS_TRIGGER
    return _calls(body, context, tools, at_least_one=False, parallel=parallel) if free else None


def _calls(body: ChatBody, context: ServeContext, tools: list[Tool], *, at_least_one: bool, parallel: bool) -> Spec:
    """The grammar of calls, their arguments written as the request wants its JSON; what a tool's schema asks and no
    grammar holds is the tool's own business (`strict`)."""
    options = msgspec.structs.replace(fields.to_json_options(body, context.config), unsupported=None)
    return options.applied(context.tool_format.spec(tools, at_least_one=at_least_one, parallel=parallel))


def new_choices(request: ChatRequest, context: ServeContext, prefix: str = "call_") -> list[ChoiceState]:
    """One state a choice."""

    def state(number: int) -> ChoiceState:
        parser = context.parser(
            request.tools,
            thinks=request.thinks,
            reasoning_open=request.reasoning_open,
            wants_calls=request.wants_calls,
        )
        return ChoiceState(parser, lambda call: context.own_turns.mint(request.turn.request_id, number, call, prefix))

    return [state(number) for number in range(request.turn.n)]


async def conclude(request: ChatRequest, context: ServeContext, states: list[ChoiceState]) -> None:
    """What follows a turn: remember it, to know its echo, and tell the engine what the program waits for."""
    for state in states:
        if (own := _own_turn(request, context, state)) is not None:
            context.own_turns.remember(request.tenant, own)
            if request.rendered.head:
                context.past_prompts.remember(request.tenant, request.rendered.head, own.tokens, request.turn.prompt)
    calls = states[0].calls
    program_id = request.turn.program.program_id
    if program_id is not None and len(states) == 1:
        await context.kept.gap(program_id, "tool" if calls else "human", calls[0].name if calls else None)


def _own_turn(request: ChatRequest, context: ServeContext, state: ChoiceState) -> OwnTurn | None:
    """The turn as it may come back; None where a stop string cut the text inside a token, or it did not end."""
    finished = state.finished
    if finished is None or isinstance(finished.stop, str) or finished.reason not in ("stop", "tool_calls"):
        return None
    has_end = bool(state.tokens) and state.tokens[-1] in context.card.end_token_ids
    return OwnTurn(
        tokens=tuple(state.tokens[:-1] if has_end else state.tokens),
        content=state.content or "",
        reasoning=state.reasoning,
        calls=tuple(state.calls),
        program_id=request.turn.program.program_id or "",
    )


async def collect(
    events: AsyncIterator[Choice], request: ChatRequest, context: ServeContext, body: ChatBody
) -> dict[str, Any]:
    """The whole answer."""
    states = new_choices(request, context)
    async for number, event in events:
        states[number].take(event)
    await conclude(request, context, states)
    answer = {
        **_head(request, context, "chat.completion"),
        "choices": [_choice(number, state, request, context, body) for number, state in enumerate(states)],
        "usage": openai_usage(total(state.finished for state in states if state.finished)),
    }
    return answer | extensions(states, request, context)


async def chunks(
    events: AsyncIterator[Choice], request: ChatRequest, context: ServeContext, body: ChatBody
) -> AsyncIterator[bytes]:
    """The stream, in the order that every client survives (R10 to R13)."""
    states = new_choices(request, context)
    head = _head(request, context, "chat.completion.chunk")
    wants_usage = bool(body.stream_options and body.stream_options.include_usage)
    for number in range(len(states)):
        yield sse.data(_chunk(head, number, {"role": "assistant", "content": ""}))
    async for number, event in events:
        blocks = _blocks(head, number, states[number], event, request, context, body)
        if all(state.finished for state in states) and not wants_usage:
            blocks[-1] |= extensions(states, request, context)  # the last chunk that everybody gets
        for block in blocks:
            yield sse.data(block)
    await conclude(request, context, states)
    if wants_usage:
        usage = openai_usage(total(state.finished for state in states if state.finished))
        yield sse.data({**head, "choices": [], "usage": usage, **extensions(states, request, context)})
    yield sse.DONE


def _blocks(
    head: dict[str, Any],
    number: int,
    state: ChoiceState,
    event: Any,
    request: ChatRequest,
    context: ServeContext,
    body: ChatBody,
) -> list[dict[str, Any]]:
    deltas = _merge([_delta(part, state) for part in state.take(event)])
    blocks = [_chunk(head, number, delta) for delta in deltas]
    if isinstance(event, Delta) and event.logprobs and request.num_top is not None:
        if not blocks:
            blocks = [_chunk(head, number, {"content": ""})]
        blocks[0]["choices"][0]["logprobs"] = chat_logprobs(event.logprobs, context.renderer.tokenizer, request.num_top)
    if isinstance(event, Delta) and body.return_token_ids and blocks:
        blocks[0]["choices"][0]["token_ids"] = event.tokens
    if isinstance(event, Finished):
        blocks.append(_chunk(head, number, {}, finish_reason(state)))
    return blocks


def _delta(part: Part, state: ChoiceState) -> dict[str, Any]:
    match part:
        case TextPart(text):
            return {"content": text}
        case ReasoningPart(text):
            return {"reasoning_content": text}
        case CallBegin(call, name):
            function = {"name": name, "arguments": ""}
            return {
                "tool_calls": [{"index": call, "id": state.calls[call].id, "type": "function", "function": function}]
            }
        case CallArguments(call, text):
            return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}
        case _:
            return {}


def _merge(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop the empty ones; join neighbours of one kind of text."""
    merged: list[dict[str, Any]] = []
    for delta in filter(None, deltas):
        for key in ("content", "reasoning_content"):
            if merged and key in delta and key in merged[-1]:
                merged[-1][key] += delta[key]
                break
        else:
            merged.append(delta)
    return merged


def finish_reason(state: ChoiceState) -> str:
    """One of the four that clients know (R13, row 19): an abort that still has an answer is a stop."""
    reason = state.finish_reason
    return reason if reason in ("stop", "length", "tool_calls") else "stop"


def _head(request: ChatRequest, context: ServeContext, kind: str) -> dict[str, Any]:
    return {
        "id": request.turn.request_id,
        "object": kind,
        "created": request.created,
        "model": context.served_name,
        "system_fingerprint": None,
    }


def _chunk(head: dict[str, Any], number: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {**head, "choices": [{"index": number, "delta": delta, "logprobs": None, "finish_reason": reason}]}


def _choice(
    number: int, state: ChoiceState, request: ChatRequest, context: ServeContext, body: ChatBody
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": state.content, "refusal": None}
    if state.reasoning:
        message["reasoning_content"] = state.reasoning
    if state.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in state.calls
        ]
    choice: dict[str, Any] = {
        "index": number,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(state),
    }
    if request.num_top is not None:
        choice["logprobs"] = chat_logprobs(state.logprobs, context.renderer.tokenizer, request.num_top)
    if body.return_token_ids:
        choice["token_ids"] = state.tokens
    return choice


def extensions(states: list[ChoiceState], request: ChatRequest, context: ServeContext) -> dict[str, Any]:
    """What is added for those who ask: timings, the cache's account, the prompt's ids and logprobs. Unasked: the
    grammar's account where it is not plain. In every chat dialect the same."""
    finished = states[0].finished
    if finished is None:
        return {}
    extra: dict[str, Any] = {}
    if request.wants.timings:
        extra["timings"] = timings(finished.timings)
    if request.wants.account:
        extra["cache"] = {"spliced_tokens": request.rendered.num_spliced, "miss": finished.miss}
    extra |= grammar_notes([state.finished for state in states], [state.calls for state in states])
    if request.wants.prompt_token_ids:
        extra["prompt_token_ids"] = list(request.turn.prompt)
    if request.wants.prompt_logprobs:
        extra["prompt_logprobs"] = prompt_logprobs(finished.prompt_logprobs or [], context.renderer.tokenizer)
    return extra
