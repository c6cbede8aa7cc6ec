"""Request bodies in the OpenAPI document: msgspec structs as JSON Schema, with a filled-in example."""

from typing import Any

import msgspec


def body_schema(kind: type, example: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `kind`; every definition stands inside the body's own schema."""
    (schema,), components = msgspec.json.schema_components(
        [kind], schema_hook=_any, ref_template="#/components/schemas/{name}"
    )
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}},
        "x-components": components,
    }


def _any(kind: type) -> dict[str, Any]:
    """`object` is any JSON value; msgspec has no word for it."""
    if kind is object:
        return {"description": "any JSON value"}
    raise NotImplementedError


def with_components(document: dict[str, Any]) -> dict[str, Any]:
    """Move the definitions that routes brought along to where references look for them."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for path in document.get("paths", {}).values():
        for operation in path.values():
            schemas |= operation.pop("x-components", {})
    return document
