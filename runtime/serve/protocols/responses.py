"""Wire types of `/v1/responses`."""

from typing import Any

import msgspec

Json = Any


class ReasoningOptions(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: str | list[Json] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    max_output_tokens: int | float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str | None] | None = None
    tools: list[Json] | None = None
    tool_choice: str | dict[str, Json] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Json] | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    metadata: dict[str, Json] | None = None
    truncation: str | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    json_options: dict[str, Json] | None = None
    return_timings: bool | None = None
    explain: bool | None = None
