"""Workloads with the published parameters of other systems' papers: lengths, turns and gaps only. Seeded."""

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ramet.runtime.simulate.workload import Gap, Session, Turn


class Shape(NamedTuple):
    """A kind of program: calls (mean, most), new input and output tokens of a call (means)."""

    calls_mean: float
    calls_max: int
    input_tokens: int
    output_tokens: int


AUTELLIX = {"chat": Shape(6.66, 80, 256, 277), "tools": Shape(10.75, 70, 735, 34)}
"""Autellix, table of workloads; its third, tree search, is of parallel calls."""
OUTPUT_SHARE = 0.02
"""Of a Continuum session's tokens; ours, for the paper gives the sum."""


def program_of(shape: Shape, source: random.Random, name: str, arrived_s: float, kind: str) -> Session:
    """Calls are geometric, cut at the most; lengths exponential about their means; no gaps."""
    num_calls = min(shape.calls_max, 1 + int(math.log(1.0 - source.random()) / math.log(1.0 - 1.0 / shape.calls_mean)))
    turns, context = [], 0
    for place in range(num_calls):
        new = 1 + int(source.expovariate(1.0 / shape.input_tokens))
        output = 1 + int(source.expovariate(1.0 / shape.output_tokens))
        turns.append(Turn(context, new, output, Gap(0.0) if place + 1 < num_calls else None))
        context += new + output
    return Session(name=name, turns=turns, arrived_s=arrived_s, workload=kind, tenant=kind)


def autellix_programs(kinds: Sequence[str], per_s: float, num_programs: int, seed: int) -> list[Session]:
    """Poisson arrivals of programs, kinds by chance."""
    source, now, programs = random.Random(seed), 0.0, []
    for number in range(num_programs):
        now += source.expovariate(per_s)
        kind = source.choice(kinds)
        programs.append(program_of(AUTELLIX[kind], source, f"{kind}-{number}", now, kind))
    return programs


def continuum_sessions(scale: int, per_s: float, num_sessions: int, seed: int) -> list[Session]:
    """Turns normal(10.9, 2.1) times `scale`, over 70k +- 20k tokens in all, so that longer sessions have shorter turns;
    `OUTPUT_SHARE` of the tokens is output; tools lognormal with mean 0.925 s and deviation 3.55 s."""
    source, now, sessions = random.Random(seed), 0.0, []
    tool = _lognormal(source, mean=0.925, deviation=3.55)
    for number in range(num_sessions):
        now += source.expovariate(per_s)
        num_turns = max(2, round(source.gauss(10.9, 2.1) * scale))
        tokens = max(10_000.0, source.gauss(70_000, 20_000))
        sessions.append(
            Session(
                name=f"session-{number}", turns=_even_turns(num_turns, tokens, tool), arrived_s=now, workload="agent"
            )
        )
    return sessions


def _even_turns(num_turns: int, tokens: float, tool: Callable[[], float]) -> list[Turn]:
    new, output = max(1, int((1 - OUTPUT_SHARE) * tokens / num_turns)), max(1, int(OUTPUT_SHARE * tokens / num_turns))
    return [
        Turn(
            place * (new + output),
            new,
            output,
            Gap(tool(), "tool", ("agent", "tool")) if place + 1 < num_turns else None,
        )
        for place in range(num_turns)
    ]


def _lognormal(source: random.Random, *, mean: float, deviation: float) -> Callable[[], float]:
    variance = math.log(1.0 + (deviation / mean) ** 2)
    return lambda: source.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
