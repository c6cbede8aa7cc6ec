"""S15: the same agents on the engine and in the simulator, whose cost model was just measured on that engine.

    ramet bench fidelity                        fcfs and gittins, three rounds of each
    ramet bench fidelity --set programs=32 --set rounds=5
    ramet sim fidelity                          the same, as a figure of the report

Steps of all sizes are timed on the engine with the embedded model: streams beside each other at several context
lengths, and prompts alone and beside them. A table and linear terms are fitted to them (`simulate/measured.py`). Then a
small agent workload with tool gaps, whose contexts do not fit the pool, runs on the engine; then steps are timed again.
The simulator runs the same: the same scheduler, tree and admission, with the measured costs and a manual clock. That is
a round; the error is that of the median of its ratios, simulated over real, over the rounds. Bars, on a CPU:
completion within 15 %, throughput within 10 % (10 % and 5 % where there is a GPU). It wants a quiet machine: rounds are
tried until there are enough beside which others kept less than a fifth of a core busy, three times as many at most; the
quietest count, and how busy others were beside them is said. Where they were busy, `own_..._error` tells what of the
error is the simulator's: there the costs are fitted to the steps of the very run that is foretold.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, median
from typing import NamedTuple

from ramet.bench.form import Bar, Measured, NotCorrect
from ramet.bench.neighbour import Others
from ramet.runtime.build import build_engine
from ramet.runtime.config import OrderName
from ramet.runtime.engine import Executor
from ramet.runtime.local_client import LocalClient
from ramet.runtime.simulate.measured import MeasuredCost, StepShape, TimedStep, fit
from ramet.runtime.simulate.twin import EngineSettings, twin
from ramet.runtime.simulate.workload import Gap, Session, Turn
from ramet.runtime.types import GenerateSpec, ProgramSpec, Sampling, StepPlan, StepResult, TokensPiece

POLICIES: tuple[OrderName, ...] = ("fcfs", "gittins")
KV_TOKENS, CONTEXT_LENGTH, STEP_TOKENS, MAX_RUNNING = 8_192, 2_048, 512, 32
COMPLETION_BAR, THROUGHPUT_BAR = 0.15, 0.10
GPU_COMPLETION_BAR, GPU_THROUGHPUT_BAR = 0.10, 0.05
_QUIET_CORES, _TRIES = 0.2, 3
_BUSY_S = 0.05
"""A pause between two steps of more than this is not the loop's own."""


class Outcome(NamedTuple):
    """A run, on the engine or in the simulator."""

    completion_s: float
    """Mean over programs."""
    throughput: float
    """Output tokens a second."""
    computed_tokens: float
    """Prompt tokens that the cache did not have."""


class Round(NamedTuple):
    """One run on the engine, and what the simulator makes of it with the costs of that minute."""

    engine: Outcome
    simulated: Outcome
    own: Outcome
    """Simulated with the costs of the run's own steps."""
    fit_error: float
    cores_elsewhere: float
    """That others kept busy meanwhile."""


def measure(options: Mapping[str, object] | None = None) -> Measured:
    given = options or {}
    num_programs, rounds = int(str(given.get("programs", 16))), int(str(given.get("rounds", 3)))
    sessions = agents(num_programs, seed=int(str(given.get("seed", 1))))
    figures: dict[str, float] = {}
    on_gpu = False
    for policy in POLICIES:
        found, on_gpu = asyncio.run(_rounds(policy, sessions, rounds))
        figures |= {f"{policy.replace('-', '_')}_{name}": value for name, value in _figures(found).items()}
    for field in ("completion", "throughput"):
        figures[f"worst_{field}_error"] = max(
            figures[f"{policy.replace('-', '_')}_{field}_error"] for policy in POLICIES
        )
    bars = (
        Bar("worst_completion_error", GPU_COMPLETION_BAR if on_gpu else COMPLETION_BAR, "<="),
        Bar("worst_throughput_error", GPU_THROUGHPUT_BAR if on_gpu else THROUGHPUT_BAR, "<="),
    )
    notes = {
        "programs": num_programs,
        "rounds": rounds,
        "kv_tokens": KV_TOKENS,
        "max_step_tokens": STEP_TOKENS,
        "max_running": MAX_RUNNING,
        "cost": "measured on the same engine just before and just after each round",
    }
    return Measured(figures=figures, bars=bars, notes=notes)


def _figures(rounds: Sequence[Round]) -> dict[str, float]:
    found = {
        f"{side}_{field}": median(getattr(getattr(each, side), field) for each in rounds)
        for side in ("engine", "simulated")
        for field in Outcome._fields
    }
    for name, field in (("completion", "completion_s"), ("throughput", "throughput")):
        ratios = [getattr(each.simulated, field) / getattr(each.engine, field) for each in rounds]
        found[f"{name}_ratio_least"], found[f"{name}_ratio_most"] = min(ratios), max(ratios)
        found[f"{name}_error"] = abs(median(ratios) - 1.0)
        own = [getattr(each.own, field) / getattr(each.engine, field) for each in rounds]
        found[f"own_{name}_error"] = abs(median(own) - 1.0)
    found["fit_error"] = median(each.fit_error for each in rounds)
    found["cores_busy_elsewhere"] = max(each.cores_elsewhere for each in rounds)
    return found


def agents(num_programs: int, seed: int) -> list[Session]:
    """Programs of a few turns: a prompt, short answers, a tool gap after each, its result before the next."""
    source, sessions = random.Random(seed), []
    for number in range(num_programs):
        context, turns, num_turns = 0, [], source.randint(4, 8)
        for place in range(num_turns):
            new = source.randint(256, 768) if place == 0 else source.randint(32, 160)
            output = source.randint(8, 32)
            gap_s = source.choice([0.02, 0.05, 0.1, 0.5, 2.0])
            gap = Gap(gap_s, "tool", ("agent", "shell", "ls" if gap_s < 0.3 else "pytest"))
            turns.append(Turn(context, new, output, gap if place + 1 < num_turns else None))
            context += new + output
        sessions.append(Session(name=f"agent-{number}", turns=turns, arrived_s=0.1 * number, workload="agent"))
    return sessions


def simulated(policy: OrderName, sessions: Sequence[Session], cost: MeasuredCost) -> Outcome:
    settings = EngineSettings(policy=policy, kv_tokens=KV_TOKENS, max_step_tokens=STEP_TOKENS, max_running=MAX_RUNNING)
    replay = twin(settings, cost).open_loop(sessions)
    if replay.num_refused:
        raise NotCorrect(f"the simulator refused {replay.num_refused} turns that the engine took")
    return Outcome(
        fmean(session.ended_s - session.started_s for session in replay.sessions),
        sum(turn.output_tokens for turn in replay.turns) / replay.seconds,
        sum(turn.prompt_tokens - turn.cached_tokens for turn in replay.turns),
    )


# On the engine -------------------------------------------------------------------------------------------------------


class Stopwatch:
    """Around an engine's executor: notes each step's shape, and how long it and the loop after it took."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.steps = inner, list[TimedStep]()
        self._last: tuple[StepShape, float, float] | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        began = time.perf_counter()
        if self._last is not None:
            shape, compute_s, ended = self._last
            between_s = began - ended
            self.steps.append(TimedStep(shape, compute_s, between_s if plan.rows and between_s < _BUSY_S else None))
            self._last = None
        result = self.inner.execute(plan)
        if plan.rows:
            self._last = (StepShape.of(plan.rows), result.compute_s, time.perf_counter())
        return result


async def _rounds(policy: OrderName, sessions: Sequence[Session], rounds: int) -> tuple[list[Round], bool]:
    """On one engine; and whether it is on a GPU."""
    client = build_engine(
        kv_tokens=KV_TOKENS,
        policy=policy,
        context_length=CONTEXT_LENGTH,
        max_step_tokens=STEP_TOKENS,
        max_running=MAX_RUNNING,
    )
    found: list[Round] = []
    try:
        await timed_steps(client)  # warms it
        before = await timed_steps(client)
        for number in range(_TRIES * rounds):
            others = Others()
            await client.flush_cache()
            with watched(client) as watch:
                real = await play(client, sessions, f"{policy}-{number}")
            after = await timed_steps(client)
            cost, own = fit([*before, *after]), fit(watch.steps, quiet_only=False)
            told, told_own = (simulated(policy, sessions, each) for each in (cost, own))
            found.append(Round(real, told, told_own, cost.error, others.cores()))
            before = after
            if sum(each.cores_elsewhere < _QUIET_CORES for each in found) >= rounds:
                break
    finally:
        await asyncio.to_thread(client.stop)
    quietest = sorted(found, key=lambda each: each.cores_elsewhere)[:rounds]
    return quietest, client.card.device.startswith("cuda")


STREAMS = ((1, 64), (1, 1000), (2, 300), (4, 600), (8, 64), (8, 400), (16, 200))
"""How many side by side, tokens of the prompt of each."""
PROMPTS = (24, 48, 96, 160, 320, 640, 1200)
BESIDE = ((3, 400), (10, 120))
"""Streams that prompts come to meanwhile."""


async def timed_steps(client: LocalClient) -> list[TimedStep]:
    """Steps of all sizes, timed on the engine as its clients see it."""
    source = random.Random(0)
    with watched(client) as watch:
        for num_streams, prompt in STREAMS:
            await asyncio.gather(*(_stream(client, source, prompt, 10) for _ in range(num_streams)))
        for prompt in PROMPTS:
            await _stream(client, source, prompt, 1)
            await _stream(client, source, prompt, 1)
        for num_streams, prompt in BESIDE:
            streams = [_stream(client, source, prompt, 16) for _ in range(num_streams)]
            late = [_later(client, source, 0.05 * n, 80 * (1 + n % 4), 4) for n in range(6)]
            await asyncio.gather(*streams, *late)
    return watch.steps


@contextmanager
def watched(client: LocalClient) -> Iterator[Stopwatch]:
    """An engine's steps, timed. A step's time is no part of the client's interface: this looks past it."""
    engine = client._engine
    watch = Stopwatch(engine.executor)
    engine.executor = watch
    try:
        yield watch
    finally:
        engine.executor = watch.inner


async def _later(client: LocalClient, source: random.Random, wait_s: float, prompt: int, output: int) -> None:
    await asyncio.sleep(wait_s)
    await _stream(client, source, prompt, output)


async def _stream(client: LocalClient, source: random.Random, prompt: int, output: int) -> None:
    branch = await client.open(ProgramSpec(workload="calibration"))
    await client.extend(branch, [TokensPiece(_text(client, source, prompt))])
    async for _ in client.generate(branch, _spec(output)):
        pass
    await client.close(branch, program=True)


async def play(client: LocalClient, sessions: Sequence[Session], run: str) -> Outcome:
    """The sessions on an engine, each at its time."""
    before = await client.statistics()
    began = time.perf_counter()
    seconds = await asyncio.gather(*(_agent(client, session, run) for session in sessions))
    makespan = time.perf_counter() - began
    after = await client.statistics()
    output = sum(turn.output_tokens for session in sessions for turn in session.turns)
    if after.generated_tokens_total - before.generated_tokens_total != output:
        raise NotCorrect("the engine generated another number of tokens than the workload has")
    computed = (after.prompt_tokens_total - before.prompt_tokens_total) - (
        after.cached_tokens_total - before.cached_tokens_total
    )
    return Outcome(fmean(seconds), output / makespan, computed)


async def _agent(client: LocalClient, session: Session, run: str) -> float:
    """Seconds from its arrival to its end."""
    source = random.Random(f"{run} {session.name}")
    await asyncio.sleep(session.arrived_s)
    began = time.perf_counter()
    spec = ProgramSpec(program_id=f"{run}-{session.name}", workload=session.workload)
    branch = await client.open(spec)
    for turn in session.turns:
        await client.extend(branch, [TokensPiece(_text(client, source, turn.new_tokens))])
        async for _ in client.generate(branch, _spec(turn.output_tokens)):
            pass
        if turn.gap is not None:
            await client.gap(branch, "tool", " ".join(turn.gap.key[1:]))
            await asyncio.sleep(turn.gap.duration_s)
    await client.close(branch, program=True)
    return time.perf_counter() - began


def _spec(output: int) -> GenerateSpec:
    return GenerateSpec(max_tokens=output, ignore_eos=True, sampling=Sampling(temperature=0))


def _text(client: LocalClient, source: random.Random, length: int) -> list[int]:
    """Any tokens will do, from the middle of the vocabulary."""
    size = client.card.vocabulary_size
    return [source.randrange(size // 4, size - size // 4) for _ in range(length)]
