"""Wire types of `/v1/chat/completions`. Unknown fields are ignored, null is absent (clients.md R3, R4)."""

from typing import Any

import msgspec

Json = Any


class FunctionCall(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Json] | None = None


class ToolCall(msgspec.Struct):
    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[Json] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    function_call: FunctionCall | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ServingFields(msgspec.Struct, kw_only=True):
    """Who asks, and how to treat it: hints for the scheduler, never for the content."""

    user: str | None = None
    metadata: dict[str, Json] | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None
    program_id: str | None = None
    request_id: str | None = None
    rid: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    deadline_s: float | None = None
    return_token_ids: bool | None = None
    return_prompt_token_ids: bool | None = None
    return_timings: bool | None = None
    explain: bool | None = None


class SamplingFields(ServingFields, kw_only=True):
    """What every text endpoint takes, OpenAI's names and those of vLLM and SGLang."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    stop: str | list[str | None] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    timeout: float | None = None
    stream_interval: int | None = None


class GrammarFields(SamplingFields, kw_only=True):
    """Every dialect in which clients ask for constrained output (clients.md section 9)."""

    response_format: dict[str, Json] | None = None
    structured_outputs: dict[str, Json] | None = None
    guided_json: Json = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    json_schema: Json = None
    grammar_drafts: bool | None = None
    """False: tokens that a grammar forces are computed one by one."""
    json_options: dict[str, Json] | None = None
    """Ours: `any_order`, `whitespace`, `unsupported` of the schemas that this request brings."""


class ChatBody(GrammarFields, kw_only=True):
    model: str | None = None
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | float | None = None
    max_completion_tokens: int | float | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    tools: list[Json] | None = None
    tool_choice: str | dict[str, Json] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Json] | None = None
    function_call: str | dict[str, Json] | None = None
    reasoning_effort: str | None = None
    separate_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Json] | None = None
    documents: list[Json] | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None


class CompletionBody(GrammarFields, kw_only=True):
    model: str | None = None
    prompt: str | list[Json] | None = None
    """Text, texts, token ids, or lists of token ids. None: the beginning of a new document, as this API has it."""
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | float | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | bool | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
