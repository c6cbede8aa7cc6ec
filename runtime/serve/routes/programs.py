"""/v1/programs and /v1/engine: EngineClient's verbs over HTTP, for programs that run elsewhere (`RuntimeEndpoint`)."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime import program_wire as wire
from ramet.runtime.checkpoint import pack, unpack
from ramet.runtime.client import KeepsPrograms
from ramet.runtime.errors import NotBuilt, RametError
from ramet.runtime.failures import to_failed
from ramet.runtime.serve import sse
from ramet.runtime.serve.account import discreet
from ramet.runtime.serve.adapters.fields import require_trusted
from ramet.runtime.serve.body import read_body
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.context import ServeContext, new_id
from ramet.runtime.serve.disconnect import until_gone
from ramet.runtime.serve.identify import tenant_of
from ramet.runtime.serve.openapi import body_schema
from ramet.runtime.serve.programs import OpenProgram, OpenPrograms
from ramet.runtime.serve.routes.accounting import Entry, accounted
from ramet.runtime.serve.routes.base import asker_of, body_of, context_of, state_of
from ramet.runtime.serve.turn import closing
from ramet.runtime.serve.wire_errors import json_response
from ramet.runtime.types import BranchHandle, Event, Finished, GenerateSpec, Mark, MessagesPiece, ProgramSpec

router = APIRouter()
BRANCH = "/v1/programs/{program_id}/branches/{branch_id}"
_OCTETS: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_BYTES: dict[int | str, dict[str, Any]] = {200: {"description": "A sealed checkpoint.", "content": _OCTETS}}
_SEALED: dict[str, Any] = {"requestBody": {"required": True, "content": _OCTETS}}


@router.post("/v1/programs", openapi_extra=body_schema(ProgramSpec, {"priority": 0}))
async def open_program(http: Request) -> Response:
    """Open a program with one empty branch."""
    context, spec, asker = context_of(http), await body_of(http, ProgramSpec), asker_of(http)
    programs = state_of(http).programs
    await _close_abandoned(http, programs)
    programs.require_room()
    salt = tenant_of(asker, spec.salt or None, context.config)
    branch = await context.engine.open(msgspec.structs.replace(spec, salt=salt, tenant=asker.key or spec.tenant))
    programs.add(branch.program_id, asker.key)
    return json_response(wire.OpenedProgram(program_id=branch.program_id, branch_id=branch.branch_id))


@router.delete("/v1/programs/{program_id}")
async def close_program(http: Request, program_id: str) -> Response:
    """Close a program and all its branches; what runs is aborted. Answers with its usage."""
    context = context_of(http)
    _use(http, program_id)
    usage = await context.engine.close(BranchHandle(program_id, 0), program=True)
    state_of(http).programs.remove(program_id)
    return json_response(usage)


@router.delete(BRANCH)
async def close_branch(http: Request, program_id: str, branch_id: int) -> Response:
    """Close one branch; frees what only it used. Answers with its usage."""
    context = context_of(http)
    _use(http, program_id)
    return json_response(await context.engine.close(BranchHandle(program_id, branch_id)))


@router.post("/v1/programs/{program_id}/checkpoint", responses=_BYTES)
async def checkpoint(http: Request, program_id: str) -> Response:
    """All of a program but its KV, sealed. What runs is recorded as far as it is, and runs on."""
    context = context_of(http)
    _use(http, program_id)
    saved = await _keeper(context).checkpoint(program_id)
    salt = "" if saved.spec.salt == tenant_of(asker_of(http), None, context.config) else saved.spec.salt
    spec = msgspec.structs.replace(saved.spec, salt=salt, tenant="")
    return Response(pack(msgspec.structs.replace(saved, spec=spec)), media_type="application/octet-stream")


@router.post("/v1/programs/restore", openapi_extra=_SEALED)
async def restore(http: Request) -> Response:
    """Open a program again from what its checkpoint answered, with the ids that it had, for the key that asks."""
    context, asker, programs = context_of(http), asker_of(http), state_of(http).programs
    saved = unpack(await read_body(http, max_bytes=context.config.max_body_bytes))
    for index, conversation in enumerate(saved.conversations):
        require_trusted(conversation.template_text, f"$.conversations[{index}].template_text", context.config)
    await _close_abandoned(http, programs)
    programs.require_room()
    salt = tenant_of(asker, saved.spec.salt or None, context.config)
    spec = msgspec.structs.replace(saved.spec, salt=salt, tenant=asker.key or saved.spec.tenant)
    branches = await _keeper(context).restore(msgspec.structs.replace(saved, spec=spec))
    program_id = branches[0].program_id
    programs.add(program_id, asker.key)
    return json_response(
        wire.RestoredProgram(program_id=program_id, branch_ids=[branch.branch_id for branch in branches])
    )


@router.post(f"{BRANCH}/resume")
async def resume(http: Request, program_id: str, branch_id: int) -> Response:
    """End a turn that ran when its checkpoint was written: its events from the beginning."""
    context = context_of(http)
    program = _use(http, program_id)
    entry = Entry(new_id("gen-"), program_id, (), GenerateSpec())
    return await _streamed(http, entry, _keeper(context).resume(BranchHandle(program_id, branch_id)), program)


@router.post(
    f"{BRANCH}/extend", openapi_extra=body_schema(wire.ExtendBody, {"pieces": [{"type": "text", "text": "Hi"}]})
)
async def extend(http: Request, program_id: str, branch_id: int) -> Response:
    """Append text, tokens or messages."""
    context, body = context_of(http), await body_of(http, wire.ExtendBody)
    _use(http, program_id)
    for index, piece in enumerate(body.pieces):
        if isinstance(piece, MessagesPiece):
            require_trusted(piece.chat_template, f"$.pieces[{index}].chat_template", context.config)
    await context.engine.extend(BranchHandle(program_id, branch_id), body.pieces)
    return json_response({})


@router.post(f"{BRANCH}/generate", openapi_extra=body_schema(GenerateSpec, {"max_tokens": 16}))
async def generate(http: Request, program_id: str, branch_id: int) -> Response:
    """Generate; the answer is a stream of events. Closing the connection aborts."""
    context, spec = context_of(http), await body_of(http, GenerateSpec)
    program = _use(http, program_id)
    entry = Entry(new_id("gen-"), program_id, (), spec)
    return await _streamed(http, entry, context.engine.generate(BranchHandle(program_id, branch_id), spec), program)


async def _streamed(http: Request, entry: Entry, events: AsyncIterator[Event], program: OpenProgram) -> Response:
    """Events as they come; an error before the first is a status code."""
    config = state_of(http).config
    counted = _accounted(http, entry, events)
    first = await until_gone(http, _first(counted))
    blocks = _blocks(first, counted, program, config)
    return sse.response(blocks, path=http.url.path, keep_alive_s=config.keep_alive_s)


async def _accounted(http: Request, entry: Entry, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    with accounted(http, state_of(http), entry) as finished:
        async with closing(events) as each:
            async for event in each:
                if isinstance(event, Finished):
                    finished.append(event)
                yield event


async def _first(events: AsyncIterator[Event]) -> Event:
    """A refusal is a status code, so it has to come before the stream begins."""
    return await anext(events)


async def _blocks(
    first: Event, events: AsyncIterator[Event], program: OpenProgram, config: ServeConfig
) -> AsyncIterator[bytes]:
    program.num_running += 1
    try:
        async with closing(events) as rest:
            yield sse.data(discreet(first, config))
            async for event in rest:
                yield sse.data(discreet(event, config))
    except RametError as error:
        yield sse.data(to_failed(error))
    finally:
        program.num_running -= 1


@router.post(f"{BRANCH}/select", openapi_extra=body_schema(wire.SelectBody, {"choices": ["yes", "no"]}))
async def select(http: Request, program_id: str, branch_id: int) -> Response:
    """Score the choices in one pass and append the winner."""
    context, body = context_of(http), await body_of(http, wire.SelectBody)
    _use(http, program_id)
    branch = BranchHandle(program_id, branch_id)
    with accounted(http, state_of(http), Entry(new_id("sel-"), program_id, (), GenerateSpec())) as finished:
        picked = context.engine.select(branch, body.choices, body.method, body.temperature, body.seed, body.append)
        selection = await until_gone(http, picked)
        finished.append(Finished(reason="stop", usage=selection.usage))
    return json_response(selection)


@router.post(f"{BRANCH}/fork", openapi_extra=body_schema(wire.ForkBody, {"n": 2}))
async def fork(http: Request, program_id: str, branch_id: int) -> Response:
    """n branches that continue from here."""
    context, body = context_of(http), await body_of(http, wire.ForkBody)
    _use(http, program_id)
    branches = await context.engine.fork(BranchHandle(program_id, branch_id), body.n)
    return json_response(wire.ForkedBranches(branch_ids=[branch.branch_id for branch in branches]))


@router.post(f"{BRANCH}/mark")
async def mark(http: Request, program_id: str, branch_id: int) -> Response:
    """A point to roll back to."""
    _use(http, program_id)
    found = await context_of(http).engine.mark(BranchHandle(program_id, branch_id))
    return json_response(wire.MarkBody(num_tokens=found.num_tokens, serial=found.serial))


@router.post(f"{BRANCH}/rollback", openapi_extra=body_schema(wire.MarkBody, {"num_tokens": 0, "serial": 0}))
async def rollback(http: Request, program_id: str, branch_id: int) -> Response:
    """Cut back to a mark."""
    context, body = context_of(http), await body_of(http, wire.MarkBody)
    _use(http, program_id)
    await context.engine.rollback(BranchHandle(program_id, branch_id), Mark(body.num_tokens, body.serial))
    return json_response({})


@router.post(f"{BRANCH}/gap", openapi_extra=body_schema(wire.GapBody, {"kind": "tool", "tool": "search"}))
async def gap(http: Request, program_id: str, branch_id: int) -> Response:
    """The branch waits for a tool, a human or a join."""
    context, body = context_of(http), await body_of(http, wire.GapBody)
    _use(http, program_id)
    await context.engine.gap(BranchHandle(program_id, branch_id), body.kind, body.tool, body.expected_s)
    return json_response({})


@router.get(f"{BRANCH}/tokens")
async def tokens(http: Request, program_id: str, branch_id: int) -> Response:
    """The branch's token ids."""
    _use(http, program_id)
    return json_response(
        wire.TokensBody(tokens=await context_of(http).engine.tokens(BranchHandle(program_id, branch_id)))
    )


@router.get(f"{BRANCH}/text")
async def text(http: Request, program_id: str, branch_id: int) -> Response:
    """The branch's text as the model sees it."""
    _use(http, program_id)
    return json_response(wire.TextBody(text=await context_of(http).engine.text(BranchHandle(program_id, branch_id))))


@router.get("/v1/engine/card")
async def card(http: Request) -> Response:
    """What is served."""
    return json_response(context_of(http).card)


@router.get("/v1/engine/statistics")
async def statistics(http: Request) -> Response:
    """The engine's numbers at this moment."""
    return json_response(await context_of(http).engine.statistics())


@router.post("/v1/engine/flush_cache")
async def flush_cache(http: Request) -> Response:
    """Drop every cached page that nobody uses."""
    return json_response(wire.Flushed(num_pages=await context_of(http).engine.flush_cache()))


@router.post("/v1/engine/tokenize", openapi_extra=body_schema(wire.TextBody, {"text": "Hello"}))
async def tokenize(http: Request) -> Response:
    """Token ids of a text."""
    context, body = context_of(http), await body_of(http, wire.TextBody)
    found = await context.engine.tokenize(body.text, allow_special=body.allow_special, add_bos=body.add_bos)
    return json_response(wire.TokensBody(tokens=found))


@router.post("/v1/engine/detokenize", openapi_extra=body_schema(wire.TokensBody, {"tokens": [1, 2]}))
async def detokenize(http: Request) -> Response:
    """The text of token ids."""
    context, body = context_of(http), await body_of(http, wire.TokensBody)
    found = await context.engine.detokenize(body.tokens, skip_special=body.skip_special)
    return json_response(wire.TextBody(text=found))


def _keeper(context: ServeContext) -> KeepsPrograms:
    if not isinstance(context.engine, KeepsPrograms):
        raise NotBuilt(f"a checkpoint on {type(context.engine).__name__}")
    return context.engine


def _use(http: Request, program_id: str) -> OpenProgram:
    return state_of(http).programs.use(program_id, asker_of(http).key)


async def _close_abandoned(http: Request, programs: OpenPrograms) -> None:
    for name in programs.abandoned():
        programs.remove(name)
        with contextlib.suppress(RametError):
            await context_of(http).engine.close(BranchHandle(name, 0), program=True)
