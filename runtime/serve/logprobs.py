"""Token logprobs in the forms of chat and of completions. Token text comes from the tokenizer's bytes, so half
characters show as bytes and never crash a client."""

import math
from collections.abc import Sequence
from typing import Any

from ramet.runtime.literals import TextCodec
from ramet.runtime.types import TokenLogprob

LOWEST = -9999.0
"""What stands for minus infinity, which JSON can't say."""


def finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST) if not math.isnan(logprob) else LOWEST


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: TextCodec, num_top: int) -> dict[str, Any]:
    """`{"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}], "refusal": null}`"""
    content = [
        {
            **_chat_token(tokenizer, entry.token, entry.logprob),
            "top_logprobs": [_chat_token(tokenizer, token, logprob) for token, logprob in entry.top[:num_top]],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_token(tokenizer: TextCodec, token: int, logprob: float | None) -> dict[str, Any]:
    raw = tokenizer.all_token_bytes[token]
    return {"token": raw.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(raw)}


def completion_logprobs(
    entries: Sequence[TokenLogprob], tokenizer: TextCodec, num_top: int, *, offset: int = 0
) -> dict[str, Any]:
    """`{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`; the first prompt token's logprob is null.

    Two tokens that print alike would share a key of `top_logprobs`; the likelier one has it.
    """
    texts = [token_text(tokenizer, entry.token) for entry in entries]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [finite(entry.logprob) for entry in entries],
        "top_logprobs": [_top(entry, tokenizer, num_top) for entry in entries],
        "text_offset": offsets,
    }


def prompt_logprobs(entries: Sequence[TokenLogprob], tokenizer: TextCodec) -> list[dict[str, Any] | None]:
    """vLLM's form: for each token of the prompt its own logprob and the likeliest, by id; null for the first."""
    return [None if entry.logprob is None else _by_id(entry, tokenizer) for entry in entries]


def _by_id(entry: TokenLogprob, tokenizer: TextCodec) -> dict[str, Any]:
    ranks = {token: rank for rank, (token, _) in enumerate(entry.top, 1)}
    known = {entry.token: entry.logprob, **dict(entry.top)}
    return {
        str(token): {
            "logprob": finite(logprob),
            "rank": ranks.get(token),
            "decoded_token": token_text(tokenizer, token),
        }
        for token, logprob in known.items()
    }


def _top(entry: TokenLogprob, tokenizer: TextCodec, num_top: int) -> dict[str, float | None] | None:
    if entry.logprob is None:
        return None
    top: dict[str, float | None] = {}
    for token, logprob in entry.top[:num_top]:
        top.setdefault(token_text(tokenizer, token), finite(logprob))
    top.setdefault(token_text(tokenizer, entry.token), finite(entry.logprob))
    return top


def token_text(tokenizer: TextCodec, token: int) -> str:
    """A token as OpenAI prints it: its text, or `bytes:\\xe2\\x82` where it is no whole text."""
    raw = tokenizer.all_token_bytes[token]
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
