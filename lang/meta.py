"""How a variable was made, in the words of SGLang's `get_meta_info`, plus ours. Reads a filled slot; knows nothing
else."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ramet.lang.values import Slot
from ramet.runtime.types import TokenLogprob


def meta_info(slot: Slot) -> dict[str, Any]:
    """finish_reason, token counts and logprobs of a generation; decision, scores and probabilities of a select."""
    info: dict[str, Any] = {"id": slot.name, **_counts(slot)}
    if slot.selection is not None:
        return info | _selection(slot)
    if slot.finished is not None:
        info["finish_reason"] = {"type": slot.finished.reason, "matched": slot.finished.stop}
        info["timings"] = msgspec.to_builtins(slot.finished.timings)
        if slot.finished.ledger is not None:
            info["ledger"] = slot.finished.ledger
        if slot.finished.violations is not None:
            info["violations"] = slot.finished.violations
        if slot.finished.miss is not None:
            info["miss"] = slot.finished.miss
        if slot.finished.prompt_logprobs is not None:
            info |= _logprobs(slot, "input", slot.finished.prompt_logprobs)
    if slot.logprobs:
        info |= _logprobs(slot, "output", slot.logprobs)
    return info


def _counts(slot: Slot) -> dict[str, int]:
    usage = slot.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
    }


def _logprobs(slot: Slot, side: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    texts = slot.token_texts or {}
    return {
        f"{side}_token_logprobs": [(entry.logprob, entry.token, texts.get(entry.token)) for entry in logprobs],
        f"{side}_top_logprobs": [
            [(logprob, token, texts.get(token)) for token, logprob in entry.top] for entry in logprobs
        ],
    }


def _selection(slot: Slot) -> dict[str, Any]:
    selection = slot.selection
    assert selection is not None
    sums = [[entry.logprob or 0.0 for entry in choice] for choice in selection.logprobs]
    return {
        "decision": slot.text.result() if slot.text.done() else None,
        "probabilities": selection.probabilities,
        "scores": selection.scores,
        "normalized_prompt_logprobs": [sum(choice) / max(len(choice), 1) for choice in sums],
        "input_token_logprobs": [
            [(entry.logprob, entry.token, None) for entry in choice] for choice in selection.logprobs
        ],
    }
