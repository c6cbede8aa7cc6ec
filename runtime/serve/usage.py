"""Usage in each dialect's words, summed over choices. Cached tokens are always told."""

from collections.abc import Iterable
from typing import Any

from ramet.runtime.types import Finished, Timings, Usage


def total(finished: Iterable[Finished]) -> Usage:
    """Of a request with n choices: its prompt once, its outputs together."""
    usages = [item.usage for item in finished]
    if not usages:
        return Usage()
    return Usage(
        prompt_tokens=usages[0].prompt_tokens,
        cached_tokens=usages[0].cached_tokens,
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        drafted_tokens=sum(usage.drafted_tokens for usage in usages),
        accepted_tokens=sum(usage.accepted_tokens for usage in usages),
    )


def openai_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "prompt_cache_hit_tokens": usage.cached_tokens,
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.drafted_tokens - usage.accepted_tokens,
        },
    }


def responses_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def anthropic_usage(usage: Usage) -> dict[str, Any]:
    """`input_tokens` leaves the cached ones out: the three add up to the prompt."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def timings(times: Timings) -> dict[str, Any]:
    """Milliseconds, for those who ask."""
    first = times.time_to_first_token_s
    return {
        "queue_ms": round(times.queue_s * 1e3, 3),
        "prefill_ms": round(times.prefill_s * 1e3, 3),
        "decode_ms": round(times.decode_s * 1e3, 3),
        "time_to_first_token_ms": None if first is None else round(first * 1e3, 3),
    }
