"""Sessions to replay: how long prompt and answer of each turn are, what was there before, and the gap after.

Lengths only; the runner makes token ids of them, so that exactly what should be shared is shared.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ramet.runtime.simulate.gaps import ToolCall, tool_calls
from ramet.runtime.simulate.traces import Session as RecordedSession
from ramet.runtime.types import GapKind


class Gap(NamedTuple):
    """What follows a turn."""

    duration_s: float
    kind: GapKind = "tool"
    key: tuple[str, ...] = ()
    expected_s: float | None = None
    """A hint."""


class Turn(NamedTuple):
    """One request of a session."""

    kept_tokens: int
    """Leading tokens of the previous turn's prompt and answer that this prompt begins with."""
    new_tokens: int
    """Prompt tokens after those."""
    output_tokens: int
    gap: Gap | None
    """None: the session's last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Turns one after the other: a program, or one branch of a program of several."""

    name: str
    """`program/branch` for a branch of a program: what stands before the first slash names the program."""
    turns: Sequence[Turn]
    arrived_s: float = 0.0
    """Open loop: when it comes. Closed loop: ignored."""
    after: tuple[str, ...] = ()
    """Sessions of the run that must have ended before it comes; it comes `arrived_s` after the last of them."""
    workload: str = ""
    tenant: str = ""
    priority: int = 0
    shared_prefix: tuple[str, int] = ("", 0)
    """Name and length of a prompt head that sessions of the same name share."""
    blocks: tuple[int, tuple[int, ...]] = (0, ())
    """Tokens of a block and block ids: the first prompt is made of these, cut to its length."""

    @property
    def program(self) -> str:
        return program_of_session(self.name)


def resent(session: Session) -> Session:
    """The same without the splice: a client sends the model's outputs back as text, and none is known again. The tokens
    of an output are computed a second time with the next prompt; what lies before it is still found."""
    turns = list(session.turns[:1])
    for before, turn in itertools.pairwise(session.turns):
        kept = min(turn.kept_tokens, before.kept_tokens + before.new_tokens)
        turns.append(turn._replace(kept_tokens=kept, new_tokens=turn.new_tokens + turn.kept_tokens - kept))
    return replace(session, turns=turns)


def program_of_session(name: str) -> str:
    return name.partition("/")[0]


def coding_sessions(
    recorded: Sequence[RecordedSession],
    *,
    seed: int,
    min_requests: int = 10,
    max_turns: int = 40,
    divide_input: int = 8,
    divide_output: int = 4,
    redraw_gaps: bool = True,
) -> Iterator[Session]:
    """Recorded coding sessions in random order, again and again, made smaller: the set-up of S6 and S12."""
    source = random.Random(seed)
    calls = tool_calls(seed)
    pool = [session for session in recorded if len(session.main_rows) >= min_requests]
    for number in itertools.count():
        rows = source.choice(pool).main_rows[:max_turns]
        turns = []
        for place, row in enumerate(rows):
            tokens = max(2, row.input_tokens // divide_input)
            before = rows[place - 1].input_tokens // divide_input if place else 0
            kept = min(row.reusable_tokens // divide_input, before, tokens - 1) if place else 0
            gap = None
            if place + 1 < len(rows):
                gap = _drawn(next(calls)) if redraw_gaps else Gap(rows[place + 1].gap_s or 0.0, "human")
            turns.append(Turn(kept, tokens - kept, max(1, row.output_tokens // divide_output), gap))
        yield Session(name=f"coding-{number}", turns=turns, workload="coding")


def _drawn(call: ToolCall) -> Gap:
    key = ("coding", call.tool, call.command) if call.command else ("coding", call.tool)
    return Gap(call.duration_s, "tool", key)


def starting_sessions(
    *, seed: int, num_sessions: int = 64, within_s: float = 13.0, low: int = 1_400, high: int = 8_000
) -> list[Session]:
    """Sessions that begin at even sizes from `low` to `high` in random order, then grow by short turns: S7."""
    source, calls = random.Random(seed), tool_calls(seed)
    starts = [low + (high - low) * place // (num_sessions - 1) for place in range(num_sessions)]
    source.shuffle(starts)
    arrivals = sorted(source.uniform(0, within_s) for _ in starts)
    return [
        Session(name=f"start-{number}", turns=_growing(start, source, calls), arrived_s=arrived, workload="starting")
        for number, (start, arrived) in enumerate(zip(starts, arrivals, strict=True))
    ]


def _growing(start: int, source: random.Random, calls: Iterator[ToolCall]) -> list[Turn]:
    num_turns, tokens, turns = source.randint(8, 16), start, []
    for place in range(num_turns):
        kept, new = (0, start) if place == 0 else (tokens, source.randint(100, 500))
        tokens = kept + new
        turns.append(Turn(kept, new, source.randint(40, 120), _drawn(next(calls)) if place + 1 < num_turns else None))
    return turns
