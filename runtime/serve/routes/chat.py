"""POST /v1/chat/completions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.serve.adapters import openai_chat
from ramet.runtime.serve.openapi import body_schema
from ramet.runtime.serve.protocols.openai_chat import ChatBody
from ramet.runtime.serve.routes.base import answer, asker_of, body_of, context_of, logged, numbered

router = APIRouter()

EXAMPLE = {"model": "default", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32}


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody, EXAMPLE))
async def create_chat_completion(http: Request) -> Response:
    """Chat, OpenAI's dialect: streaming, tools, JSON Schema, logprobs, n."""
    context = context_of(http)
    body = await body_of(http, ChatBody)
    request = openai_chat.to_request(body, context, asker_of(http))
    events = logged(numbered(context, [request.turn]), http, request.turn)
    return await answer(
        http,
        events,
        stream=bool(body.stream),
        collect=lambda items: openai_chat.collect(items, request, context, body),
        blocks=lambda items: openai_chat.chunks(items, request, context, body),
    )
