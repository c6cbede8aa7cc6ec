"""Why the cache missed what it missed, told for people: the cause, the turn, and both texts at the place.

The engine says at which token its knowledge of a prompt ended, and how (`Finished.miss`); here that becomes words and
text. Knows no engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.errors import RametError
from ramet.runtime.literals import TextCodec
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.records import Record
from ramet.runtime.types import Event, Finished

_CONTEXT = 24
"""Tokens of text shown on each side of the place."""

MEANINGS: Mapping[str, str] = {
    "never_seen": "Everything up to here was cached; nobody has sent what follows before.",
    "diverged": "Others went on differently from here: a part was edited, reordered or spelled anew, or is new.",
    "evicted": "This was cached, and made room for others since. More KV memory would have kept it.",
    "template_rewrote": "The chat template rendered older turns differently than before, so the text changed here.",
    "prompt_logprobs": "Prompt logprobs were asked for: their tokens have to be computed again.",
    "cache_off": "The cache is off.",
}
_WHOLE = "All of the prompt was cached."
_UNKNOWN = "The request ended before its prompt was looked up."


def discreet(event: Event, config: ServeConfig) -> Event:
    """An engine's event as its asker may see it: where several keys share one cache, a miss does not tell what others
    sent instead. All events pass here on their way out."""
    if not isinstance(event, Finished) or event.miss is None or config.isolate_cache or len(config.api_keys) <= 1:
        return event
    told = {name: value for name, value in event.miss.items() if name not in ("expected_tokens", "evicted")}
    return msgspec.structs.replace(event, miss=told)


def account(record: Record, prompt: Sequence[int] | None, tokenizer: TextCodec, opener: int | None) -> dict[str, Any]:
    """cause, meaning, at_token, not_cached_tokens, evicted, turn, before, came, cached_instead: what is known of them.

    opener  the token that opens each turn, see `turn_opener`
    """
    miss = record.miss
    if miss is None:
        looked_up = record.cached_tokens > 0 or record.new_tokens > 0
        return {"cause": None, "meaning": _WHOLE if looked_up else _UNKNOWN}
    at = int(miss["at_token"])
    told: dict[str, Any] = {
        "cause": miss["cause"],
        "meaning": MEANINGS.get(str(miss["cause"]), ""),
        "at_token": at,
        "not_cached_tokens": miss["num_tokens"],
    }
    if "evicted" in miss:
        told["evicted"] = miss["evicted"]
    if prompt is None:
        return told
    if opener is not None and (turn := sum(token == opener for token in prompt[: at + 1])):
        told["turn"] = turn
    told["before"] = _text(tokenizer, prompt[max(0, at - _CONTEXT) : at])
    told["came"] = _text(tokenizer, prompt[at : at + _CONTEXT])
    if instead := miss.get("expected_tokens"):
        told["cached_instead"] = _text(tokenizer, list(instead)[:_CONTEXT])
    return told


def turn_opener(template: ChatTemplate, tokenizer: TextCodec) -> int | None:
    """The special token of which each more message brings one; None: the template has no such token."""
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant", "user")]
    try:
        texts = [template.render(messages[:num], add_generation_prompt=False) for num in (1, 3, 5)]
    except RametError:  # a template with needs of its own: turns are then not numbered
        return None
    rendered = [tokenizer.encode(text, allow_special=True) for text in texts]
    opening = [
        token
        for token in dict.fromkeys(rendered[-1])
        if token in tokenizer.special_ids
        and [ids.count(token) - rendered[0].count(token) for ids in rendered] == [0, 2, 4]
    ]
    return opening[0] if opening else None


def _text(tokenizer: TextCodec, tokens: Sequence[int]) -> str:
    return tokenizer.decode(list(tokens), skip_special=False)
