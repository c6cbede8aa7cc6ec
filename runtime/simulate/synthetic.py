"""Workloads with the published parameters of other systems' papers: lengths, turns and gaps only. Seeded."""

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ramet.runtime.simulate.gaps import tool_calls
from ramet.runtime.simulate.workload import Gap, Session, Turn


class Shape(NamedTuple):
    """A kind of program: calls (mean, most), new input and output tokens of a call (means)."""

    calls_mean: float
    calls_max: int
    input_tokens: int
    output_tokens: int


AUTELLIX = {"chat": Shape(6.66, 80, 256, 277), "tools": Shape(10.75, 70, 735, 34)}
"""Autellix, table of workloads; its third, tree search, is of parallel calls: `tree_search`."""
TREE_ROUNDS, TREE_WIDTH, TREE_HEAD, TREE_INPUT, TREE_OUTPUT = (2, 18), (12, 20), 300, 467, 73
"""160 calls in the mean (published: 159.7), of 467 tokens in and 73 out. That they come in 2 to 18 rounds of 12 to 20
parallel calls, over a head of 300 tokens which the program shares, is ours."""
OUTPUT_SHARE = 0.02
"""Of a Continuum session's tokens; ours, for the paper gives the sum."""


class Augmentation(NamedTuple):
    """A way in which a program leaves the model and comes back (InferCept, table of workloads), means."""

    gap_s: float
    calls: float
    context_tokens: int
    """When it leaves."""


AUGMENTATIONS = {
    "math": Augmentation(9e-5, 3.75, 1422),
    "qa": Augmentation(0.69, 2.5, 1846),
    "embodied": Augmentation(0.09, 28.0, 2185),
    "chat": Augmentation(28.6, 4.45, 753),
    "image": Augmentation(20.0, 6.9, 1247),
    "speech": Augmentation(17.2, 6.9, 1251),
}
AUGMENTED_OUTPUT_SHARE = 0.2
"""Of what a context grows by between two calls; ours, as is that the first prompt is half of the mean context."""


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
        if kind == "tree":
            programs += tree_search(source, f"tree-{number}", now)
        else:
            programs.append(program_of(AUTELLIX[kind], source, f"{kind}-{number}", now, kind))
    return programs


def tree_search(source: random.Random, name: str, arrived_s: float) -> list[Session]:
    """One program of parallel calls: each round of them comes when the one before is over."""
    calls: list[Session] = []
    before: tuple[str, ...] = ()
    for number in range(source.randint(*TREE_ROUNDS)):
        width = source.randint(*TREE_WIDTH)
        calls += [
            Session(
                name=f"{name}/r{number}c{place}",
                turns=[Turn(0, TREE_INPUT - TREE_HEAD, 1 + int(source.expovariate(1.0 / TREE_OUTPUT)), None)],
                arrived_s=0.0 if before else arrived_s,
                after=before,
                workload="tree",
                tenant="tree",
                shared_prefix=(name, TREE_HEAD),
            )
            for place in range(width)
        ]
        before = tuple(call.name for call in calls[-width:])
    return calls


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


def augmented_sessions(per_s: float, num_sessions: int, seed: int) -> list[Session]:
    """Poisson arrivals, the six kinds by chance; calls normal about their mean (a third of it the deviation), gaps
    exponential. Contexts grow evenly, so that their mean when the model is left is the published one."""
    source, now, sessions = random.Random(seed), 0.0, []
    for number in range(num_sessions):
        now += source.expovariate(per_s)
        kind = source.choice(list(AUGMENTATIONS))
        shape = AUGMENTATIONS[kind]
        num_gaps = max(1, round(source.gauss(shape.calls, shape.calls / 3)))
        first = max(32, int(source.gauss(0.5, 0.1) * shape.context_tokens))
        grown = max(8, int(shape.context_tokens / max(1.0, shape.calls - 1.0)))
        output = max(2, int(AUGMENTED_OUTPUT_SHARE * grown))
        turns, context = [], 0
        for place in range(num_gaps + 1):
            new = first if place == 0 else grown - output
            gap = Gap(source.expovariate(1.0 / shape.gap_s), "tool", ("augmented", kind)) if place < num_gaps else None
            turns.append(Turn(context, new, output, gap))
            context += new + output
        sessions.append(Session(name=f"{kind}-{number}", turns=turns, arrived_s=now, workload=kind))
    return sessions


GRAPH_STAGES, GRAPH_WORKERS, GRAPH_CALLS, GRAPH_OUTPUT = 3, 4, 27, 239
"""A planner, three stages of four workers that call a tool between two calls of the model, a reviewer and a writer make
27 calls; the shape is ours. 24 graphs say 24 * 27 * 239.4 = 155,136 tokens, which is published."""


def agent_graphs(per_s: float, num_graphs: int, seed: int) -> list[Session]:
    """Poisson arrivals of fork-join graphs of agents. Agents of one role share a system prompt of 512 tokens."""
    source, now, sessions, tools = random.Random(seed), 0.0, list[Session](), tool_calls(seed)
    for number in range(num_graphs):
        now += source.expovariate(per_s)
        before: tuple[str, ...] = (f"graph-{number}/planner",)
        sessions.append(_agent(before[0], "planner", source, None, arrived_s=now))
        for stage in range(GRAPH_STAGES):
            names = tuple(f"graph-{number}/s{stage}w{worker}" for worker in range(GRAPH_WORKERS))
            for name in names:
                call = next(tools)
                gap = Gap(call.duration_s, "tool", ("graph", call.tool, call.command))
                sessions.append(_agent(name, f"worker-{stage}", source, gap, after=before))
            before = names
        for role in ("reviewer", "writer"):
            sessions.append(_agent(f"graph-{number}/{role}", role, source, None, after=before))
            before = (sessions[-1].name,)
    return sessions


def _agent(
    name: str,
    role: str,
    source: random.Random,
    gap: Gap | None,
    *,
    arrived_s: float = 0.0,
    after: tuple[str, ...] = (),
) -> Session:
    """One call; two, where there is a tool's gap between them."""
    new, output = source.randint(400, 1_200), max(16, int(source.gauss(GRAPH_OUTPUT, GRAPH_OUTPUT / 4)))
    turns = [Turn(0, new, output, gap)]
    if gap is not None:
        turns.append(Turn(512 + new + output, source.randint(100, 500), output, None))
    return Session(
        name=name,
        turns=turns,
        arrived_s=arrived_s,
        after=after,
        workload="graph",
        shared_prefix=(role, 512),
    )


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
