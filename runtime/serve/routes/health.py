"""Is it alive, is it ready, how does it do."""

from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from ramet.runtime.errors import RametError
from ramet.runtime.serve.routes.base import state_of
from ramet.runtime.serve.wire_errors import json_response

router = APIRouter()


_PAGE = Path(__file__).parent.parent / "page.html"


@router.get("/")
async def root(http: Request) -> Response:
    """For browsers a page to chat, with the last requests; for probes a cheap answer, and where to look next."""
    if "text/html" in http.headers.get("accept", ""):
        return HTMLResponse(_PAGE.read_text(encoding="utf-8"))
    return json_response({"name": "ramet", "status": state_of(http).status, "docs": "/docs"})


@router.get("/health")
async def health(http: Request) -> Response:
    """200 while requests are served, 503 with the reason otherwise; answered also while the model loads."""
    state = state_of(http)
    status = 200 if state.status == "ready" else 503
    return json_response(state.health(), status=status, headers={} if status == 200 else {"retry-after": "2"})


@router.get("/ready")
async def ready(http: Request) -> Response:
    """As /health: for orchestrators that ask both."""
    return await health(http)


@router.get("/metrics")
async def metrics(http: Request) -> Response:
    """Prometheus text."""
    state = state_of(http)
    try:
        statistics = await state.ready_context().engine.statistics()
    except RametError:
        statistics = None
    return PlainTextResponse(state.metrics.render(statistics), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.post("/flush_cache")
async def flush_cache(http: Request) -> Response:
    """Drop every cached page that nobody uses."""
    num_pages = await state_of(http).ready_context().engine.flush_cache()
    return json_response({"flushed_pages": num_pages})
