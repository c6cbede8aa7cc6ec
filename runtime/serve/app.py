"""The FastAPI application: routes, errors in the client's dialect, offline docs. Knows no process and no model."""

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ramet.runtime.errors import RametError
from ramet.runtime.serve.gate import Gate
from ramet.runtime.serve.openapi import with_components
from ramet.runtime.serve.routes import (
    chat,
    completions,
    docs,
    generate,
    health,
    messages,
    models,
    programs,
    requests,
    responses,
)
from ramet.runtime.serve.state import ServerState
from ramet.runtime.serve.wire_errors import (
    on_http_exception,
    on_invalid_parameter,
    on_ramet_error,
    on_unexpected,
)
from ramet.version import __version__


def create_app(state: ServerState) -> FastAPI:
    """An application over this state; give it to uvicorn or to a test client."""
    app = FastAPI(title="Ramet", version=__version__, docs_url=None, redoc_url=None)
    app.state.ramet = state
    for module in (chat, completions, responses, messages, models, programs, generate, requests, health, docs):
        app.include_router(module.router)
    app.add_exception_handler(RametError, on_ramet_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_invalid_parameter)
    app.add_exception_handler(Exception, on_unexpected)
    app.add_middleware(Gate, config=state.config)
    _complete_openapi(app)
    return app


def _complete_openapi(app: FastAPI) -> None:
    plain = app.openapi

    def document() -> dict[str, Any]:
        return with_components(plain())

    app.openapi = document  # type: ignore[method-assign]
