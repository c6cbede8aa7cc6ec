"""`/v1/completions`: text or token prompts, several at once, echo and logprobs of the prompt."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from ramet.runtime.errors import BadRequest, ContextOverflow, NotBuilt
from ramet.runtime.serve import sse
from ramet.runtime.serve.adapters import fields
from ramet.runtime.serve.context import ServeContext, new_id, now
from ramet.runtime.serve.deferred import grammar_notes
from ramet.runtime.serve.identify import Asker, program_spec, tenant_of
from ramet.runtime.serve.logprobs import completion_logprobs, prompt_logprobs
from ramet.runtime.serve.protocols.openai_chat import CompletionBody
from ramet.runtime.serve.turn import Choice, Turn
from ramet.runtime.serve.usage import openai_usage, timings, total
from ramet.runtime.types import Delta, Event, Finished, GenerateSpec, TokenLogprob, Usage


class CompletionRequest(NamedTuple):
    """A completions body, understood."""

    request_id: str
    turns: list[Turn]
    """One a prompt; choice k of prompt i has index i * n + k."""
    prompt_texts: list[str]
    n: int
    echo: bool
    num_top: int | None
    created: int
    tenant: str
    given_texts: list[str | None]
    """The prompts that came as text; None: as token ids."""


def to_request(body: CompletionBody, context: ServeContext, asker: Asker) -> CompletionRequest:
    if body.suffix:
        hint = "This model has no fill-in-the-middle training; put what follows into the prompt."
        raise NotBuilt("suffix", hint=hint)
    n = fields.integer(body.n, "n", 1, context.config.max_choices) or 1
    best_of = fields.integer(body.best_of, "best_of", 1, context.config.max_choices)
    if best_of is not None and best_of != n:
        raise NotBuilt("best_of other than n", hint="Ask for n choices with logprobs and pick one.")
    num_top = _num_top(body, context)
    request_id = body.request_id or body.rid or new_id("cmpl-")
    tenant = tenant_of(asker, body.cache_salt, context.config)
    given = _given(body, context)
    prompts = [_tokens(prompt, body, context, tenant, at) for prompt, at in given]
    turns = []
    for index, prompt in enumerate(prompts):
        turn = Turn(
            request_id=f"{request_id}/{index}" if len(prompts) > 1 else request_id,
            program=program_spec(body, [{"role": "user", "content": str(prompt[:64])}], [], asker, tenant, context),
            prompt=prompt,
            spec=_spec(body, context, prompt, num_top),
            n=n,
        )
        turns.append(turn)
    texts = [context.renderer.tokenizer.decode(prompt, skip_special=False) for prompt in prompts] if body.echo else []
    given_texts = [prompt if isinstance(prompt, str) else None for prompt, _ in given]
    return CompletionRequest(request_id, turns, texts, n, bool(body.echo), num_top, now(), tenant, given_texts)


def _num_top(body: CompletionBody, context: ServeContext) -> int | None:
    if body.logprobs is None or body.logprobs is False:
        return None
    return fields.integer(int(body.logprobs), "logprobs", 0, context.config.max_logprobs)


def _given(body: CompletionBody, context: ServeContext) -> list[tuple[Any, str]]:
    """Each prompt and its place: a string, strings, one list of ids, or lists of ids. None is not an empty one: the
    API's own default is the token that begins a document."""
    prompt: Any = body.prompt
    if prompt is None:
        begin = context.renderer.tokenizer.bos_id
        prompt = [begin] if begin is not None else ""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [(prompt, "$.prompt")]
    if not prompt:
        raise _empty("$.prompt")
    return [(item, f"$.prompt[{index}]") for index, item in enumerate(prompt)]


def _tokens(prompt: Any, body: CompletionBody, context: ServeContext, tenant: str, at: str) -> list[int]:
    """A prompt's ids. Text that begins with a prompt and answer of ours has their very tokens there."""
    if isinstance(prompt, list):
        return _checked(prompt, context, at)
    if not isinstance(prompt, str):
        raise BadRequest(expected="text or token ids", got=prompt, at=at)
    if not prompt:
        raise _empty(at)
    tokenizer = context.renderer.tokenizer
    own, tokens = context.own_texts.longest(tenant, prompt) if context.config.splice else ("", ())
    if own:
        rest = tokenizer.encode(prompt[len(own) :], allow_special=True, follows="text")
        return _cut(_checked([*tokens, *rest], context, at), body)
    add_bos = body.add_special_tokens is not False and tokenizer.adds_bos
    return _cut(_checked(tokenizer.encode(prompt, allow_special=True, add_bos=add_bos), context, at), body)


def _remember(request: CompletionRequest, context: ServeContext, states: "list[_State]") -> None:
    """Know these texts again when a client sends them on. One that a stop string cut inside a token is left out: its
    tokens say more than the client got."""
    for number, state in enumerate(states):
        given, turn = request.given_texts[number // request.n], request.turns[number // request.n]
        finished = state.finished
        ended = finished is not None and finished.reason in ("stop", "length") and not isinstance(finished.stop, str)
        has_end = bool(state.tokens) and state.tokens[-1] in context.card.end_token_ids
        tokens = state.tokens[:-1] if has_end else state.tokens
        if given and ended and context.renderer.tokenizer.decode(tokens) == state.text:
            context.own_texts.remember(request.tenant, given + state.text, [*turn.prompt, *tokens])


def _empty(at: str) -> BadRequest:
    hint = "Leave the prompt out to begin a new document."
    return BadRequest(expected="a prompt of one token or more", got="an empty prompt", at=at, hint=hint)


def _checked(tokens: Sequence[int], context: ServeContext, at: str) -> list[int]:
    if not tokens:
        raise _empty(at)
    for index, token in enumerate(tokens):
        if not isinstance(token, int) or not 0 <= token < context.card.vocabulary_size:
            limit = context.card.vocabulary_size
            raise BadRequest(expected=f"a token id under {limit}", got=token, at=f"{at}[{index}]")
    return list(tokens)


def _cut(tokens: list[int], body: CompletionBody) -> list[int]:
    keep = fields.integer(body.truncate_prompt_tokens, "truncate_prompt_tokens", 1, 2**31 - 1)
    return tokens[-keep:] if keep else tokens


def _spec(body: CompletionBody, context: ServeContext, prompt: Sequence[int], num_top: int | None) -> GenerateSpec:
    left = context.card.context_length - len(prompt)
    asked = fields.integer(body.max_tokens, "max_tokens", 0, 2**31 - 1)
    if left < 1 and asked != 0:
        raise ContextOverflow(num_tokens=len(prompt), limit=context.card.context_length, at="$.prompt")
    max_tokens = min(16 if asked is None else asked, max(left, 0))
    echoes = bool(body.echo) and num_top is not None
    prompt_top = fields.integer(body.prompt_logprobs, "prompt_logprobs", 0, context.config.max_logprobs)
    return GenerateSpec(
        max_tokens=max_tokens,
        min_tokens=fields.integer(body.min_tokens, "min_tokens", 0, max_tokens) or 0,
        stop=fields.to_stops(body.stop, context.config),
        include_stop=bool(body.include_stop_str_in_output or body.no_stop_trim),
        stop_token_ids=fields.to_stop_ids(body, context.card.vocabulary_size),
        ignore_eos=bool(body.ignore_eos),
        skip_special_tokens=body.skip_special_tokens if body.skip_special_tokens is not None else True,
        sampling=fields.to_sampling(
            body, vocabulary_size=context.card.vocabulary_size, tokenizer=context.renderer.tokenizer
        ),
        grammar=fields.to_grammar(body, context.config),
        grammar_drafts=body.grammar_drafts is not False,
        logprobs=num_top,
        prompt_logprobs=num_top if echoes else prompt_top,
        timeout_s=body.timeout,
        stream_interval=fields.integer(body.stream_interval, "stream_interval", 1, 1024) or 1,
    )


class _State:
    """One choice: what it has said."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finished: Finished | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, Delta):
            self.text += event.text
            self.tokens += event.tokens
            self.logprobs += event.logprobs or []
        elif isinstance(event, Finished):
            self.finished = event


async def collect(
    events: AsyncIterator[Choice], request: CompletionRequest, context: ServeContext, body: CompletionBody
) -> dict[str, Any]:
    """The whole answer."""
    states = [_State() for _ in range(len(request.turns) * request.n)]
    async for number, event in events:
        states[number].take(event)
    _remember(request, context, states)
    answer = {
        **_head(request, context),
        "choices": [_choice(number, state, request, context, body) for number, state in enumerate(states)],
        "usage": openai_usage(_usage(states, request.n)),
    }
    return answer | _extensions(states, body)


def _extensions(states: list[_State], body: CompletionBody) -> dict[str, Any]:
    """Timings for who asks, and the grammar's account where it is not plain."""
    extra = grammar_notes([state.finished for state in states])
    if body.return_timings and (finished := states[0].finished):
        extra["timings"] = timings(finished.timings)
    return extra


def _usage(states: list[_State], n: int) -> Usage:
    """Each prompt once, all outputs."""
    groups = [[s.finished for s in states[i : i + n] if s.finished] for i in range(0, len(states), n)]
    parts = [total(group) for group in groups]
    return Usage(
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
        drafted_tokens=sum(part.drafted_tokens for part in parts),
        accepted_tokens=sum(part.accepted_tokens for part in parts),
    )


async def chunks(
    events: AsyncIterator[Choice], request: CompletionRequest, context: ServeContext, body: CompletionBody
) -> AsyncIterator[bytes]:
    """The stream: text as it comes, then each choice's reason, then usage where it was asked for."""
    states = [_State() for _ in range(len(request.turns) * request.n)]
    offsets = [0] * len(states)
    head = _head(request, context)
    wants_usage = bool(body.stream_options and body.stream_options.include_usage)
    async for number, event in events:
        states[number].take(event)
        prompt = request.prompt_texts[number // request.n] if request.echo and not offsets[number] else ""
        if isinstance(event, Delta) and (event.text or event.logprobs or prompt):
            logprobs = None
            if request.num_top is not None and event.logprobs:
                tokenizer = context.renderer.tokenizer
                logprobs = completion_logprobs(event.logprobs, tokenizer, request.num_top, offset=offsets[number])
            offsets[number] += len(prompt + event.text) or 1
            yield sse.data(
                _chunk(
                    head, number, prompt + event.text, logprobs, None, event.tokens if body.return_token_ids else None
                )
            )
        elif isinstance(event, Finished):
            last = _chunk(head, number, prompt, None, _reason(event), None)
            if all(state.finished for state in states) and not wants_usage:
                last |= _extensions(states, body)  # the last chunk that everybody gets
            yield sse.data(last)
    _remember(request, context, states)
    if wants_usage:
        usage = openai_usage(_usage(states, request.n))
        yield sse.data({**head, "choices": [], "usage": usage, **_extensions(states, body)})
    yield sse.DONE


def _head(request: CompletionRequest, context: ServeContext) -> dict[str, Any]:
    return {
        "id": request.request_id,
        "object": "text_completion",
        "created": request.created,
        "model": context.served_name,
    }


def _chunk(
    head: dict[str, Any],
    number: int,
    text: str,
    logprobs: dict[str, Any] | None,
    reason: str | None,
    ids: list[int] | None,
) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}
    if ids is not None:
        choice["token_ids"] = ids
    return {**head, "choices": [choice]}


def _reason(finished: Finished) -> str:
    """Completions know stop and length alone."""
    return "length" if finished.reason == "length" else "stop"


def _choice(
    number: int, state: _State, request: CompletionRequest, context: ServeContext, body: CompletionBody
) -> dict[str, Any]:
    tokenizer = context.renderer.tokenizer
    prompt = request.prompt_texts[number // request.n] if request.echo else ""
    entries = list(state.logprobs)
    prompt_entries = list(state.finished.prompt_logprobs or []) if state.finished else []
    if request.echo:
        entries = prompt_entries + entries
    logprobs = completion_logprobs(entries, tokenizer, request.num_top) if request.num_top is not None else None
    reason = _reason(state.finished) if state.finished else "length"
    choice: dict[str, Any] = {
        "index": number,
        "text": prompt + state.text,
        "logprobs": logprobs,
        "finish_reason": reason,
        "stop_reason": state.finished.stop if state.finished else None,
    }
    if body.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs(prompt_entries, tokenizer)
    if body.return_token_ids:
        choice["token_ids"] = state.tokens
    if body.return_token_ids or body.return_prompt_token_ids:
        choice["prompt_token_ids"] = list(request.turns[number // request.n].prompt)
    return choice
