"""GET /docs: the OpenAPI document as one page, without anything from another host."""

import html
import json
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

router = APIRouter()

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
summary{cursor:pointer;padding:.35rem 0}code,pre{background:#f4f4f2;border-radius:4px}pre{padding:.8rem;overflow:auto}
.verb{display:inline-block;width:4.5rem;font-weight:600;color:#5a4}"""


@router.get("/docs", include_in_schema=False)
async def docs(http: Request) -> Response:
    """Every route with its help, its fields and an example to copy."""
    document = http.app.openapi()
    rows = [
        _operation(path, verb, operation, document)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]
    title = f"Ramet {document['info']['version']}"
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
    return HTMLResponse(page + '<p>The same as data: <a href="/openapi.json">/openapi.json</a></p>' + "".join(rows))


def _operation(path: str, verb: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    example = json.dumps(content["example"], indent=2, ensure_ascii=False) if "example" in content else ""
    fields = ", ".join(f"<code>{html.escape(name)}</code>" for name in _fields(content.get("schema", {}), document))
    head = f"<span class=verb>{verb.upper()}</span> <code>{html.escape(path)}</code>"
    text = html.escape(operation.get("description") or operation.get("summary", ""))
    body = f"<p>{text}</p>" + (f"<p>Fields: {fields}</p>" if fields else "")
    return (
        f"<details><summary>{head}</summary>{body}{f'<pre>{html.escape(example)}</pre>' if example else ''}</details>"
    )


def _fields(schema: dict[str, Any], document: dict[str, Any]) -> list[str]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document.get("components", {}).get("schemas", {}).get(name, schema)
    return list(found.get("properties", {}))
