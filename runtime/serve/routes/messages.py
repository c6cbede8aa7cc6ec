"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.serve.adapters import anthropic, openai_chat
from ramet.runtime.serve.openapi import body_schema
from ramet.runtime.serve.protocols.anthropic import MessagesBody
from ramet.runtime.serve.routes.base import answer, asker_of, body_of, context_of, logged, numbered
from ramet.runtime.serve.wire_errors import json_response

router = APIRouter()

EXAMPLE = {"model": "default", "max_tokens": 32, "messages": [{"role": "user", "content": "Say hello."}]}


@router.post("/v1/messages", openapi_extra=body_schema(MessagesBody, EXAMPLE))
async def create_message(http: Request) -> Response:
    """One assistant message, whole or as block events."""
    context = context_of(http)
    body = await body_of(http, MessagesBody)
    chat = anthropic.to_chat_body(body, strip_nonces=context.config.strip_nonces)
    request = openai_chat.to_request(chat, context, asker_of(http))
    events = logged(numbered(context, [request.turn]), http, request.turn)
    return await answer(
        http,
        events,
        stream=bool(body.stream),
        collect=lambda items: anthropic.collect(items, request, context),
        blocks=lambda items: anthropic.stream(items, request, context),
    )


@router.post("/v1/messages/count_tokens", openapi_extra=body_schema(MessagesBody, EXAMPLE))
async def count_tokens(http: Request) -> Response:
    """How many tokens the same request would have as prompt."""
    context = context_of(http)
    body = await body_of(http, MessagesBody)
    chat = anthropic.to_chat_body(body, needs_max_tokens=False, strip_nonces=context.config.strip_nonces)
    request = openai_chat.to_request(chat, context, asker_of(http))
    return json_response({"input_tokens": len(request.turn.prompt)})
