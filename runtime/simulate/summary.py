"""A replay in numbers: what the report always says of a run."""

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from ramet.runtime.simulate.runner import Replay, TurnRecord


def summary(replay: Replay) -> dict[str, float]:
    """Completion, time to first token, throughput, where prompt tokens came from, preemptions, cost of the policy."""
    turns, sessions = replay.turns, replay.sessions
    completion = [session.ended_s - session.started_s for session in sessions]
    first = [turn.first_token_s for turn in turns]
    prompt = sum(turn.prompt_tokens for turn in turns)
    cached = sum(turn.cached_tokens for turn in turns)
    recomputed = sum(turn.recomputed_tokens for turn in turns)
    return {
        "sessions_ended": len(sessions),
        "turns_ended": len(turns),
        "seconds": replay.seconds,
        **_spread("completion_s", completion),
        **_spread("first_token_s", first),
        "turns_per_min": len(turns) / replay.seconds * 60 if replay.seconds else 0.0,
        "output_tokens_per_s": sum(turn.output_tokens for turn in turns) / replay.seconds if replay.seconds else 0.0,
        "prompt_tokens": prompt,
        "hit_tokens_device": cached,
        "hit_rate": cached / prompt if prompt else 0.0,
        "computed_prompt_tokens": prompt - cached,
        "hit_tokens_host": replay.loaded_tokens,
        "recomputed_after_eviction_tokens": recomputed - replay.loaded_tokens,
        "longest_queue_s": max((turn.queue_s for turn in turns), default=0.0),
        "idle_held_token_s": replay.idle_token_s,
        "preemptions": replay.num_preemptions,
        "refused": replay.num_refused,
        "steps": replay.num_steps,
        "policy_ms_per_step": 1e3 * replay.policy_s / max(1, replay.num_steps),
        "wall_s": replay.wall_s,
    }


def later_hit_rate(turns: Sequence[TurnRecord]) -> float:
    """Cached / prompt tokens over the turns that had one before them."""
    later = [turn for turn in turns if turn.place > 0]
    prompt = sum(turn.prompt_tokens for turn in later)
    return sum(turn.cached_tokens for turn in later) / prompt if prompt else 0.0


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    p95, p99 = np.percentile(values, [95, 99])
    return {
        f"{name}_mean": fmean(values),
        f"{name}_p50": median(values),
        f"{name}_p95": float(p95),
        f"{name}_p99": float(p99),
    }
