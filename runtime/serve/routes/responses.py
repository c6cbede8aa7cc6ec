"""/v1/responses: create, continue, get, list inputs, delete, cancel."""

from typing import Any

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
    """One response; stored for `previous_response_id` unless `store` is false. With `background` the answer comes at
    once, and the response is fetched later."""
    context = context_of(http)
    body = await body_of(http, ResponsesBody)
    _check_background(body)
    asker, store = asker_of(http), state_of(http).responses
    history = store.get(asker.key, body.previous_response_id).items if body.previous_response_id else []
    chat = openai_responses.to_chat_body(body, history)
    request = openai_chat.to_request(chat, context, asker)
    items = [*history, *openai_responses.input_items(body)]

    def keep(response: dict[str, Any]) -> None:
        if body.store is not False:
            store.put(asker.key, StoredResponse(response=response, items=[*items, *response["output"]]))

    async def collect(events: openai_responses.Events) -> dict[str, Any]:
        response = await openai_responses.collect(events, request, context, body)
        keep(response)
        return response

    events = logged(numbered(context, [request.turn]), http, request.turn)
    if body.background:
        begun = openai_responses.response_object(request, context, body, status="queued", output=[])
        state_of(http).background.start(
            asker.key, begun, lambda: openai_responses.collect(events, request, context, body), keep
        )
        return json_response(begun)
    return await answer(
        http,
        events,
        stream=bool(body.stream),
        collect=collect,
        blocks=lambda items: openai_responses.stream(items, request, context, body, keep=keep),
    )


def _check_background(body: ResponsesBody) -> None:
    if not body.background:
        return
    if body.stream:
        raise NotBuilt("the stream of a background response", hint="Leave out `background`, or `stream` and poll.")
    if body.store is False:
        raise BadRequest(
            expected="`store` left out or true with `background`",
            got=body.store,
            at="$.store",
            hint="A background response is fetched from the store.",
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
    """Forget a stored response; one that still runs is cancelled."""
    state, key = state_of(http), asker_of(http).key
    await state.background.cancel(key, response_id)
    state.responses.delete(key, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(http: Request, response_id: str) -> Response:
    """Stop a background response; one that has ended stays as it is. Others end when their connection closes."""
    state, key = state_of(http), asker_of(http).key
    stored = state.responses.get(key, response_id)
    if not stored.response["background"]:
        raise BadRequest(
            expected="a background response",
            got=stored.response["status"],
            at="$.response_id",
            hint="Close the connection of a streamed response to stop it.",
        )
    await state.background.cancel(key, response_id)
    return json_response(state.responses.get(key, response_id).response)
