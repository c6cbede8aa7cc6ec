"""POST /v1/completions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.serve.adapters import openai_completions
from ramet.runtime.serve.openapi import body_schema
from ramet.runtime.serve.protocols.openai_chat import CompletionBody
from ramet.runtime.serve.routes.base import answer, asker_of, body_of, context_of, logged, numbered

router = APIRouter()

EXAMPLE = {"model": "default", "prompt": "Once upon a time", "max_tokens": 32}


@router.post("/v1/completions", openapi_extra=body_schema(CompletionBody, EXAMPLE))
async def create_completion(http: Request) -> Response:
    """Text completion, OpenAI's dialect: one prompt or many, text or token ids, echo and prompt logprobs."""
    context = context_of(http)
    body = await body_of(http, CompletionBody)
    request = openai_completions.to_request(body, context, asker_of(http))
    events = logged(numbered(context, request.turns), http, request.turns[0])
    return await answer(
        http,
        events,
        stream=bool(body.stream),
        collect=lambda items: openai_completions.collect(items, request, context, body),
        blocks=lambda items: openai_completions.chunks(items, request, context, body),
    )
