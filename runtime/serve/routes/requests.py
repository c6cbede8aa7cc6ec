"""The last requests, and why each missed the cache. With API keys, each key sees its own."""

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.errors import NotFound
from ramet.runtime.serve.account import account
from ramet.runtime.serve.routes.base import asker_of, context_of, state_of
from ramet.runtime.serve.wire_errors import json_response

router = APIRouter()


@router.get("/v1/requests")
async def list_requests(http: Request, limit: int = 50) -> Response:
    """The newest requests first: tokens, milliseconds, how each ended, where the cache's knowledge ended."""
    records = state_of(http).records.newest(asker_of(http).key, max(0, limit))
    return json_response({"object": "list", "data": [msgspec.to_builtins(record) for record in records]})


@router.get("/v1/requests/{request_id}")
async def explain_request(http: Request, request_id: str) -> Response:
    """One request, and an account of what the cache had of its prompt: cause, turn, both texts at the place."""
    records = state_of(http).records
    record = records.find(asker_of(http).key, request_id)
    if record is None:
        raise NotFound(f"expected the id of one of the last requests, got {request_id!r}. GET /v1/requests lists them.")
    context = context_of(http)
    told = account(record, records.prompt(request_id), context.renderer.tokenizer, context.turn_opener)
    return json_response({**msgspec.to_builtins(record), "cache": told})
