"""Which program is behind a request: explicit ids, then tool-call ids we minted, then a fingerprint of its head.

A wrong guess may change priority, never content, and never crosses a tenant: the tenant's salt is part of every cache
key (scheduling.md 2.8).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.context import ServeContext
from ramet.runtime.serve.protocols.openai_chat import ServingFields
from ramet.runtime.serve.tools.base import Tool
from ramet.runtime.types import ProgramSpec

_HEADERS = (
    "x-session-id",
    "x-session-affinity",
    "x-claude-code-session-id",
    "session-id",
    "thread-id",
    "x-dynamo-session-id",
    "x-program-id",
)


class Asker(NamedTuple):
    """Who sent a request."""

    key: str
    """Hash of the API key; "" where none is asked for."""
    headers: Mapping[str, str]


def tenant_of(asker: Asker, cache_salt: str | None, config: ServeConfig) -> str:
    """The cache's isolation key: the API key's hash where isolation is on. A client's salt isolates under its API key
    in any case, so that nobody comes to another's cache by guessing a word."""
    if not cache_salt:
        return asker.key if config.isolate_cache else ""
    salted = hashlib.blake2b(cache_salt.encode("utf-8", "replace"), key=asker.key.encode()[:64], digest_size=16)
    return salted.hexdigest()


def program_spec(
    fields: ServingFields,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Tool],
    asker: Asker,
    tenant: str,
    context: ServeContext,
) -> ProgramSpec:
    """What the scheduler is told."""
    workload = _digest([message["content"] for message in messages if message["role"] == "system"][:1], tools)
    return ProgramSpec(
        program_id=_program_id(fields, messages, workload, asker, tenant, context),
        join=True,
        tenant=asker.key,
        salt=tenant,
        priority=fields.priority or 0,
        deadline_s=fields.deadline_s,
        workload=workload,
    )


def _program_id(
    fields: ServingFields,
    messages: Sequence[Mapping[str, Any]],
    workload: str,
    asker: Asker,
    tenant: str,
    context: ServeContext,
) -> str:
    explicit = fields.session_id or fields.program_id or fields.prompt_cache_key or _from_metadata(fields.metadata)
    explicit = explicit or next((asker.headers[name] for name in _HEADERS if asker.headers.get(name)), None)
    if explicit:
        return _scoped(explicit, f"{asker.key}/{tenant}")
    for message in reversed(messages):
        if message.get("tool_call_id"):
            found = context.own_turns.program_of_call(tenant, str(message["tool_call_id"]))
            if found:
                return found
    first = next((message["content"] for message in messages if message["role"] == "user"), "")
    return _scoped(f"{workload}/{first}", f"{asker.key}/{tenant}")


def _from_metadata(metadata: Mapping[str, Any] | None) -> str | None:
    value = (metadata or {}).get("session_id")
    return value if isinstance(value, str) else None


def _scoped(name: str, scope: str) -> str:
    return "p-" + hashlib.sha256(f"{scope}\0{name}".encode("utf-8", "replace")).hexdigest()[:24]


def _digest(system: Sequence[Any], tools: Sequence[Tool]) -> str:
    text = json.dumps([list(system), sorted(tool.name for tool in tools)], ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
