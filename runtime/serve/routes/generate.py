"""POST /generate and its kin: SGLang's native dialect."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.errors import BadRequest
from ramet.runtime.serve import sse
from ramet.runtime.serve.adapters import fields
from ramet.runtime.serve.context import ServeContext, new_id
from ramet.runtime.serve.deferred import grammar_notes
from ramet.runtime.serve.identify import program_spec, tenant_of
from ramet.runtime.serve.openapi import body_schema
from ramet.runtime.serve.protocols.openai_chat import GrammarFields, ServingFields
from ramet.runtime.serve.routes.base import answer, asker_of, body_of, context_of, logged, numbered
from ramet.runtime.serve.turn import Choice, Turn
from ramet.runtime.serve.usage import timings
from ramet.runtime.serve.wire_errors import json_response
from ramet.runtime.types import Delta, Finished, GenerateSpec, TokenLogprob

router = APIRouter()


class GenerateParams(GrammarFields, kw_only=True):
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None


class GenerateBody(ServingFields, kw_only=True):
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: GenerateParams | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None


EXAMPLE = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}


@router.post("/generate", openapi_extra=body_schema(GenerateBody, EXAMPLE))
async def generate(http: Request) -> Response:
    """Text or ids in, text and meta_info out; streamed as the text so far."""
    context = context_of(http)
    body = await body_of(http, GenerateBody)
    turn = _turn(body, context, http)
    return await answer(
        http,
        logged(numbered(context, [turn]), http, turn),
        stream=bool(body.stream),
        collect=lambda events: _collect(events, turn, body, context),
        blocks=lambda events: _blocks(events, turn, body, context),
    )


@router.get("/get_model_info")
async def get_model_info(http: Request) -> Response:
    """The served model."""
    card = context_of(http).card
    return json_response({"model_path": card.name, "is_generation": True, "context_length": card.context_length})


def _turn(body: GenerateBody, context: ServeContext, http: Request) -> Turn:
    tokenizer, params = context.renderer.tokenizer, body.sampling_params or GenerateParams()
    if (body.text is None) == (body.input_ids is None):
        raise BadRequest(expected="text or input_ids", got="both" if body.text is not None else "neither", at="$.text")
    prompt = body.input_ids
    if prompt is None:
        prompt = tokenizer.encode(body.text or "", allow_special=True, add_bos=tokenizer.adds_bos)
    if not prompt or body.text == "":
        at = "$.text" if body.text is not None else "$.input_ids"
        raise BadRequest(expected="a prompt of one token or more", got="an empty prompt", at=at)
    for index, token in enumerate(body.input_ids or []):
        if not 0 <= token < context.card.vocabulary_size:
            limit = context.card.vocabulary_size
            raise BadRequest(expected=f"a token id under {limit}", got=token, at=f"$.input_ids[{index}]")
    asker = asker_of(http)
    messages = [{"role": "user", "content": str(prompt[:64])}]
    return Turn(
        request_id=body.rid or body.request_id or new_id("gen-"),
        program=program_spec(body, messages, [], asker, tenant_of(asker, body.cache_salt, context.config), context),
        prompt=prompt,
        spec=_spec(body, params, context, len(prompt)),
        n=fields.integer(params.n, "sampling_params.n", 1, context.config.max_choices) or 1,
    )


def _spec(body: GenerateBody, params: GenerateParams, context: ServeContext, num_prompt: int) -> GenerateSpec:
    left = max(0, context.card.context_length - num_prompt)
    wanted = fields.integer(params.max_new_tokens, "sampling_params.max_new_tokens", 0, 2**31 - 1)
    num_top = fields.integer(body.top_logprobs_num, "top_logprobs_num", 0, context.config.max_logprobs) or 0
    start = fields.integer(body.logprob_start_len, "logprob_start_len", -1, max(num_prompt, 1))
    from_prompt = body.return_logprob and start is not None and start >= 0
    return GenerateSpec(
        max_tokens=min(128 if wanted is None else wanted, left),
        min_tokens=fields.integer(params.min_new_tokens, "sampling_params.min_new_tokens", 0, left) or 0,
        stop=fields.to_stops(params.stop, context.config),
        include_stop=bool(params.no_stop_trim),
        stop_token_ids=fields.to_stop_ids(params, context.card.vocabulary_size),
        ignore_eos=bool(params.ignore_eos),
        skip_special_tokens=params.skip_special_tokens if params.skip_special_tokens is not None else True,
        sampling=fields.to_sampling(
            params, vocabulary_size=context.card.vocabulary_size, tokenizer=context.renderer.tokenizer
        ),
        grammar=fields.to_grammar(params, context.config),
        grammar_drafts=params.grammar_drafts is not False,
        logprobs=num_top if body.return_logprob else None,
        prompt_logprobs=num_top if from_prompt else None,
        prompt_logprobs_start=start or 0 if from_prompt else 0,
    )


class _State:
    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finished: Finished | None = None

    def take(self, event: Any) -> None:
        if isinstance(event, Delta):
            self.text += event.text
            self.tokens += event.tokens
            self.logprobs += event.logprobs or []
        elif isinstance(event, Finished):
            self.finished = event


async def _collect(events: AsyncIterator[Choice], turn: Turn, body: GenerateBody, context: ServeContext) -> Any:
    states = [_State() for _ in range(turn.n)]
    async for number, event in events:
        states[number].take(event)
    answers = [_answer(state, turn, body, context, number) for number, state in enumerate(states)]
    return answers if turn.n > 1 else answers[0]


async def _blocks(
    events: AsyncIterator[Choice], turn: Turn, body: GenerateBody, context: ServeContext
) -> AsyncIterator[bytes]:
    states = [_State() for _ in range(turn.n)]
    async for number, event in events:
        states[number].take(event)
        if isinstance(event, Delta | Finished):
            yield sse.data({"index": number, **_answer(states[number], turn, body, context, number)})
    yield sse.DONE


def _answer(state: _State, turn: Turn, body: GenerateBody, context: ServeContext, number: int) -> dict[str, Any]:
    finished = state.finished
    usage = finished.usage if finished else None
    meta: dict[str, Any] = {
        "id": f"{turn.request_id}-{number}" if turn.n > 1 else turn.request_id,
        "finish_reason": _reason(finished),
        "prompt_tokens": len(turn.prompt),
        "completion_tokens": len(state.tokens),
        "cached_tokens": usage.cached_tokens if usage else 0,
    }
    meta |= grammar_notes([finished])
    if body.return_timings and finished:
        meta["timings"] = timings(finished.timings)
    if body.return_logprob:
        with_text = bool(body.return_text_in_logprobs)
        meta["output_token_logprobs"] = [_triple(entry, context, with_text) for entry in state.logprobs]
        prompt = (finished.prompt_logprobs if finished else None) or []
        meta["input_token_logprobs"] = [_triple(entry, context, with_text) for entry in prompt]
        if body.top_logprobs_num:
            meta["output_top_logprobs"] = [_top(entry, context, with_text) for entry in state.logprobs]
            meta["input_top_logprobs"] = [_top(entry, context, with_text) for entry in prompt]
    return {"text": state.text, "output_ids": state.tokens, "meta_info": meta}


def _reason(finished: Finished | None) -> dict[str, Any] | None:
    if finished is None:
        return None
    if finished.reason == "length":
        return {"type": "length", "length": finished.usage.completion_tokens}
    return {"type": finished.reason, "matched": finished.stop}


def _triple(entry: TokenLogprob, context: ServeContext, with_text: bool) -> list[Any]:
    text = context.renderer.tokenizer.decode([entry.token], skip_special=False) if with_text else None
    return [entry.logprob, entry.token, text]


def _top(entry: TokenLogprob, context: ServeContext, with_text: bool) -> list[list[Any]]:
    return [_triple(TokenLogprob(token, logprob), context, with_text) for token, logprob in entry.top]
