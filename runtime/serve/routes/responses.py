"""/v1/responses: create, continue, get, list inputs, delete, cancel."""

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.errors import BadRequest, NotBuilt
from ramet.runtime.serve.adapters import openai_chat, openai_responses
from ramet.runtime.serve.openapi import body_schema
from ramet.runtime.serve.protocols.responses import ResponsesBody
from ramet.runtime.serve.response_store import StoredResponse
from ramet.runtime.serve.routes.base import answer, asker_of, body_of, context_of, logged, numbered, state_of
from ramet.runtime.serve.wire_errors import json_response

router = APIRouter()

EXAMPLE = {"model": "default", "input": "Say hello.", "max_output_tokens": 32}


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesBody, EXAMPLE))
async def create_response(http: Request) -> Response:
    """One response; stored for `previous_response_id` unless `store` is false."""
    context = context_of(http)
    body = await body_of(http, ResponsesBody)
    if body.background:
        raise NotBuilt("background responses", hint="Leave `background` out and stream the answer.")
    asker, store = asker_of(http), state_of(http).responses
    history = store.get(asker.key, body.previous_response_id).items if body.previous_response_id else []
    chat = openai_responses.to_chat_body(body, history)
    request = openai_chat.to_request(chat, context, asker)
    items = [*history, *openai_responses.input_items(body)]

    def keep(response: dict[str, object]) -> None:
        if body.store is not False:
            output = response["output"]
            assert isinstance(output, list)
            store.put(asker.key, StoredResponse(response=response, items=[*items, *output]))

    async def collect(events: openai_responses.Events) -> dict[str, object]:
        response = await openai_responses.collect(events, request, context, body)
        keep(response)
        return response

    return await answer(
        http,
        logged(numbered(context, [request.turn]), http, request.turn),
        stream=bool(body.stream),
        collect=collect,
        blocks=lambda events: openai_responses.stream(events, request, context, body, keep=keep),
    )


@router.get("/v1/responses/{response_id}")
async def get_response(http: Request, response_id: str) -> Response:
    """A stored response."""
    return json_response(state_of(http).responses.get(asker_of(http).key, response_id).response)


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(http: Request, response_id: str) -> Response:
    """The conversation before a stored response's own output."""
    stored = state_of(http).responses.get(asker_of(http).key, response_id)
    inputs = stored.items[: len(stored.items) - len(stored.response["output"])]
    return json_response({"object": "list", "data": inputs, "has_more": False})


@router.delete("/v1/responses/{response_id}")
async def delete_response(http: Request, response_id: str) -> Response:
    """Forget a stored response."""
    state_of(http).responses.delete(asker_of(http).key, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(http: Request, response_id: str) -> Response:
    """Only background responses can be cancelled so; others end when their connection closes."""
    stored = state_of(http).responses.get(asker_of(http).key, response_id)
    raise BadRequest(
        expected="a background response",
        got=msgspec.json.encode(stored.response.get("status")).decode(),
        at="$.response_id",
        hint="Close the connection of a streamed response to stop it.",
    )
