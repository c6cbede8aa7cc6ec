"""Wire types of `/v1/messages` and `count_tokens`. Any version and beta header will do, unknown fields are ignored."""

from typing import Any

import msgspec

Json = Any


class AnthropicMessage(msgspec.Struct):
    role: str
    content: str | list[Json] | None = None


class OutputConfig(msgspec.Struct):
    format: dict[str, Json] | None = None
    effort: str | None = None


class MessagesBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    messages: list[AnthropicMessage]
    max_tokens: int | float | None = None
    system: str | list[Json] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    tools: list[Json] | None = None
    tool_choice: dict[str, Json] | None = None
    thinking: dict[str, Json] | None = None
    metadata: dict[str, Json] | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Json] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    json_options: dict[str, Json] | None = None
    return_timings: bool | None = None
    explain: bool | None = None
    session_id: str | None = None
