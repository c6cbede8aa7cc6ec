"""32 tool-using programs on the real engine with a KV pool that holds a third of them: each policy in the same run.

The programs are those of an agent: a prompt, then turns of a few generated tokens with a tool gap after each and the
tool's result before the next. Greedy, on the backend whose logits do not depend on the batch, so every policy must say
the same; the run is refused where one does not.
"""

import asyncio
import random
import time
from typing import NamedTuple

from ramet.bench.form import Bar, Measured, NotCorrect
from ramet.runtime.build import build_engine
from ramet.runtime.config import OrderName
from ramet.runtime.local_client import LocalClient
from ramet.runtime.types import GenerateSpec, ProgramSpec, Sampling, TokensPiece

NUM_PROGRAMS, NUM_TURNS = 32, 6
PROMPT_TOKENS, RESULT_TOKENS, OUTPUT_TOKENS = 512, 96, 16
KV_TOKENS = 12_288
POLICIES: tuple[OrderName, ...] = ("fcfs", "lpm", "las", "atlas", "program-fcfs", "gittins")
OURS: OrderName = "gittins"


class Outcome(NamedTuple):
    makespan_s: float
    computed_tokens: int
    recomputed_tokens: int
    said: list[list[int]]


def measure(options: object = None) -> Measured:
    """Every policy, one after the other, each on a fresh engine. Makespans are as quiet as the machine is."""
    outcomes = {policy: asyncio.run(_run(policy)) for policy in POLICIES}
    first = outcomes["fcfs"].said
    wrong = [policy for policy, outcome in outcomes.items() if outcome.said != first]
    if wrong:
        raise NotCorrect(f"{', '.join(wrong)} said other tokens than fcfs")
    figures: dict[str, float] = {}
    for policy, outcome in outcomes.items():
        name = policy.replace("-", "_")
        figures[f"{name}_makespan_s"] = outcome.makespan_s
        figures[f"{name}_computed_tokens"] = outcome.computed_tokens
        figures[f"{name}_recomputed_tokens"] = outcome.recomputed_tokens
    ours = outcomes[OURS].makespan_s
    best = min(outcome.makespan_s for policy, outcome in outcomes.items() if policy != OURS)
    figures["ours_over_fcfs"] = ours / outcomes["fcfs"].makespan_s
    figures["ours_over_best"] = ours / best
    settings = {
        "programs": NUM_PROGRAMS,
        "turns": NUM_TURNS,
        "kv_tokens": KV_TOKENS,
        "prompt_tokens": PROMPT_TOKENS,
        "result_tokens": RESULT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
    }
    bars = (Bar("ours_over_fcfs", 0.7, "<="), Bar("ours_over_best", 1.03, "<="))
    return Measured(figures=figures, bars=bars, notes=settings)


async def _run(policy: OrderName) -> Outcome:
    client = build_engine(kv_tokens=KV_TOKENS, policy=policy, context_length=2048, max_step_tokens=512, max_running=32)
    try:
        began = time.perf_counter()
        said = await asyncio.gather(*(_agent(client, number) for number in range(NUM_PROGRAMS)))
        seconds = time.perf_counter() - began
        statistics = await client.statistics()
    finally:
        await asyncio.to_thread(client.stop)
    return Outcome(seconds, statistics.computed_tokens_total, statistics.recomputed_tokens_total, list(said))


async def _agent(client: LocalClient, number: int) -> list[int]:
    """One program; the tokens that it said."""
    source, said = random.Random(number), list[int]()
    branch = await client.open(ProgramSpec(program_id=f"agent-{number}", workload="agent"))
    await client.extend(branch, [TokensPiece(_text(source, PROMPT_TOKENS))])
    for turn in range(NUM_TURNS):
        before = len(await client.tokens(branch))
        spec = GenerateSpec(max_tokens=OUTPUT_TOKENS, ignore_eos=True, sampling=Sampling(temperature=0))
        async for _ in client.generate(branch, spec):
            pass
        said += (await client.tokens(branch))[before:]
        if turn + 1 < NUM_TURNS:
            await client.gap(branch, "tool", "shell " + source.choice(["ls", "pytest"]))
            await asyncio.sleep(source.choice([0.02, 0.05, 0.1, 0.5, 2.0]))
            await client.extend(branch, [TokensPiece(_text(source, RESULT_TOKENS))])
    await client.close(branch, program=True)
    return said


def _text(source: random.Random, length: int) -> list[int]:
    """Any tokens will do."""
    return [source.randrange(1_000, 40_000) for _ in range(length)]
