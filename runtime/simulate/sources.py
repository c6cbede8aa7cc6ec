"""A trace file as sessions to replay: which reader fits, and what becomes of what the file does not say."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from ramet.runtime.errors import BadRequest
from ramet.runtime.simulate.gaps import tool_calls
from ramet.runtime.simulate.traces import (
    BlockRequest,
    LengthRequest,
    ModelCall,
    azure,
    lmcache_agent,
    mooncake,
    weka,
    weka_upstream,
)
from ramet.runtime.simulate.workload import Gap, Session, Turn, coding_sessions

CHARACTERS_PER_TOKEN = 4
LOADABLE = "mooncake *.jsonl, azure *.csv, weka *.jsonl.gz or trace_*.json, lmcache-agent *.jsonl"


def open_sessions(path: Path, *, limit: int | None = None) -> list[Session]:
    """Sessions that come at the trace's own times."""
    if path.suffix == ".csv":
        return [_plain(number, row) for number, row in enumerate(itertools.islice(azure(path), limit))]
    if path.suffix == ".jsonl" and "hash_ids" in _first_line(path):
        return [_blocks(number, row) for number, row in enumerate(itertools.islice(mooncake(path), limit))]
    if path.suffix == ".jsonl" and "session_id" in _first_line(path):
        return _conversations(lmcache_agent(path))[:limit]
    raise BadRequest(expected=f"a trace with arrival times: {LOADABLE}", got=str(path), at="--trace")


def live_sessions(path: Path, *, seed: int = 0, redraw_gaps: bool = True, divide: int = 8) -> Iterator[Session] | None:
    """Sessions of a trace without arrival times, for a closed loop; None where the trace has them."""
    if path.name.endswith(".jsonl.gz"):
        recorded = weka(path)
    elif path.suffix == ".json":
        recorded = [weka_upstream(path)]
    else:
        return None
    return coding_sessions(
        recorded,
        seed=seed,
        min_requests=1,
        divide_input=divide,
        divide_output=max(1, divide // 2),
        redraw_gaps=redraw_gaps,
    )


def redrawn(sessions: Sequence[Session], seed: int) -> list[Session]:
    """The same with gaps drawn anew from timed tool calls."""
    calls = tool_calls(seed)
    return [
        Session(
            name=session.name,
            turns=[turn._replace(gap=turn.gap and Gap(next(calls).duration_s)) for turn in session.turns],
            arrived_s=session.arrived_s,
            workload=session.workload,
            shared_prefix=session.shared_prefix,
            blocks=session.blocks,
        )
        for session in sessions
    ]


def poisson(sessions: Sequence[Session], per_s: float, seed: int) -> list[Session]:
    """The same, arriving at random."""
    source, now, moved = random.Random(seed), 0.0, []
    for session in sessions:
        now += source.expovariate(per_s)
        moved.append(
            Session(
                name=session.name,
                turns=session.turns,
                arrived_s=now,
                workload=session.workload,
                tenant=session.tenant,
                shared_prefix=session.shared_prefix,
                blocks=session.blocks,
            )
        )
    return moved


def _plain(number: int, row: LengthRequest) -> Session:
    turn = Turn(0, max(1, row.input_tokens), max(1, row.output_tokens), None)
    return Session(name=f"request-{number}", turns=[turn], arrived_s=row.arrived_s)


def _blocks(number: int, row: BlockRequest) -> Session:
    turn = Turn(0, max(1, row.input_tokens), max(1, row.output_tokens), None)
    return Session(name=f"request-{number}", turns=[turn], arrived_s=row.arrived_s, blocks=(512, row.blocks))


def _conversations(calls: Sequence[ModelCall]) -> list[Session]:
    """One session a conversation. The input holds the user's side only, so what it grew by, and the answers before it,
    are what is new."""
    by_session: dict[str, list[ModelCall]] = defaultdict(list)
    for call in calls:
        by_session[call.session].append(call)
    first_s = min((call.time_s for call in calls), default=0.0)
    return [_conversation(name, rows, rows[0].time_s - first_s) for name, rows in by_session.items()]


def _conversation(name: str, calls: Sequence[ModelCall], arrived_s: float) -> Session:
    turns: list[Turn] = []
    context, before = 0, ""
    for place, call in enumerate(calls):
        grew = call.input.startswith(before) and place > 0
        new = max(1, (len(call.input) - (len(before) if grew else 0)) // CHARACTERS_PER_TOKEN)
        output = max(1, len(call.output) // CHARACTERS_PER_TOKEN)
        following = calls[place + 1].time_s - call.time_s if place + 1 < len(calls) else None
        turns.append(Turn(context if grew else 0, new, output, None if following is None else Gap(following)))
        context, before = (context if grew else 0) + new + output, call.input
    return Session(name=name, turns=turns, arrived_s=arrived_s, workload="agent")


def _first_line(path: Path) -> str:
    if not path.is_file():
        raise BadRequest(expected="a trace file", got=str(path), at="--trace")
    with path.open(encoding="utf-8") as file:
        return file.readline()
