"""What is served, and text to tokens and back."""

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.errors import BadRequest
from ramet.runtime.serve.adapters.openai_chat import to_request
from ramet.runtime.serve.context import ServeContext
from ramet.runtime.serve.logprobs import token_text
from ramet.runtime.serve.openapi import body_schema
from ramet.runtime.serve.protocols.openai_chat import ChatBody, ChatMessage
from ramet.runtime.serve.routes.base import asker_of, body_of, context_of, state_of
from ramet.runtime.serve.wire_errors import json_response

router = APIRouter()


class TokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    text: str | None = None
    content: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


@router.get("/v1/models")
async def list_models(http: Request) -> Response:
    """The served model."""
    return json_response({"object": "list", "data": [_model(context_of(http), state_of(http).started)]})


@router.get("/v1/models/{name:path}")
async def get_model(http: Request, name: str) -> Response:
    """The served model, under whatever name: every name is answered by it."""
    return json_response(_model(context_of(http), state_of(http).started))


@router.post("/tokenize", openapi_extra=body_schema(TokenizeBody, {"prompt": "Hello"}))
async def tokenize(http: Request) -> Response:
    """Token ids of a text, or of messages through the chat template."""
    context, body = context_of(http), await body_of(http, TokenizeBody)
    tokens = _tokens(body, context, http)
    answer: dict[str, object] = {
        "count": len(tokens),
        "max_model_len": context.card.context_length,
        "tokens": tokens,
    }
    if body.return_token_strs:
        answer["token_strs"] = [token_text(context.renderer.tokenizer, token) for token in tokens]
    return json_response(answer)


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeBody, {"tokens": [1, 2, 3]}))
async def detokenize(http: Request) -> Response:
    """The text of token ids, special tokens spelled out."""
    context, body = context_of(http), await body_of(http, DetokenizeBody)
    for index, token in enumerate(body.tokens):
        if not 0 <= token < context.card.vocabulary_size:
            limit = context.card.vocabulary_size
            raise BadRequest(expected=f"a token id under {limit}", got=token, at=f"$.tokens[{index}]")
    text = context.renderer.tokenizer.decode(body.tokens, skip_special=False)
    return json_response({"prompt": text, "text": text})


@router.get("/tokenizer_info")
async def tokenizer_info(http: Request) -> Response:
    """What a tool needs beside /tokenize and /detokenize to do without a tokenizer of its own (lm-eval does)."""
    context = context_of(http)
    tokenizer = context.renderer.tokenizer
    return json_response(
        {
            "bos_token": tokenizer.special_text(tokenizer.bos_id) or None,
            "eos_token": tokenizer.special_text(tokenizer.eos_id) or None,
            "pad_token": None,
            "vocab_size": tokenizer.vocabulary_size,
            "model_max_length": context.card.context_length,
            "chat_template": context.card.chat_template,
        }
    )


def _tokens(body: TokenizeBody, context: ServeContext, http: Request) -> list[int]:
    if body.messages is not None:
        chat = ChatBody(messages=body.messages, tools=body.tools, add_generation_prompt=body.add_generation_prompt)
        return list(to_request(chat, context, asker_of(http)).turn.prompt)
    text = body.prompt if body.prompt is not None else body.text if body.text is not None else body.content
    if text is None:
        raise BadRequest(expected="prompt or messages", got=None, at="$.prompt")
    tokenizer = context.renderer.tokenizer
    add_bos = body.add_special_tokens is not False and tokenizer.adds_bos
    return tokenizer.encode(text, allow_special=True, add_bos=add_bos)


def _model(context: ServeContext, started: int) -> dict[str, object]:
    return {
        "id": context.served_name,
        "object": "model",
        "created": started,
        "owned_by": "ramet",
        "root": context.card.name,
        "parent": None,
        "max_model_len": context.card.context_length,
    }
