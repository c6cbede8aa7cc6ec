"""Readers of public traces: files in, plain records out. Know no policy and no engine.

The files and their formats are described in `SOURCES.md` beside them. A missing file is a BadRequest that names it.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from ramet.runtime.errors import BadRequest


class BlockRequest(NamedTuple):
    """A request of a trace that knows its prefix blocks (Mooncake): equal id = equal prefix up to that block."""

    arrived_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


class LengthRequest(NamedTuple):
    """A request of a trace without prefixes (Azure)."""

    arrived_s: float
    input_tokens: int
    output_tokens: int


class SessionRow(NamedTuple):
    """One request of a recorded coding-agent session (WEKA)."""

    is_tool_result: bool
    """The request carries a tool result; else user text only."""
    parent: int
    """Index, in reading order with sub-agents counted, of the request that owns the deepest shared block; -1: none."""
    shared_blocks: int
    """Leading 64-token blocks seen before in this session."""
    input_tokens: int
    output_tokens: int
    start_s: float
    gap_s: float | None
    """Since the end of the previous response; None where it was not recorded."""
    server_s: float | None
    stop: str
    """`t` tool use, `e` end of turn, empty: unknown."""

    @property
    def reusable_tokens(self) -> int:
        return min(64 * self.shared_blocks, self.input_tokens)


class SubAgent(NamedTuple):
    """A child session: its parent waits for it."""

    rows: tuple[SessionRow, ...]
    start_s: float
    duration_s: float


class Session(NamedTuple):
    """A recorded session in its order."""

    name: str
    tool_tokens: int
    system_tokens: int
    items: tuple[SessionRow | SubAgent, ...]

    @property
    def main_rows(self) -> list[SessionRow]:
        return [item for item in self.items if isinstance(item, SessionRow)]

    @property
    def all_rows(self) -> list[SessionRow]:
        """In reading order, those inside sub-agents included."""
        return [row for item in self.items for row in (item.rows if isinstance(item, SubAgent) else (item,))]


class ModelCall(NamedTuple):
    """One call of an agent with its text (lmcache-agent). `input` holds the user side only."""

    time_s: float
    session: str
    input: str
    output: str


def mooncake(path: Path) -> list[BlockRequest]:
    """`mooncake/*.jsonl`; blocks of 512 tokens."""
    return [
        BlockRequest(row["timestamp"] / 1000, row["input_length"], row["output_length"], tuple(row["hash_ids"]))
        for row in _json_lines(path)
    ]


def azure(path: Path) -> list[LengthRequest]:
    """`azure2023/*.csv`; times from the first row on."""
    with _existing(path).open(newline="", encoding="utf-8") as file:
        rows = [
            (_azure_time(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row in csv.DictReader(file)
        ]
    return [LengthRequest(time - rows[0][0], context, generated) for time, context, generated in rows]


def weka(path: Path) -> list[Session]:
    """`weka-claude-code/weka_compact.jsonl.gz`."""
    return [
        Session(raw["id"], raw["tool"], raw["sys"], tuple(_weka_item(item) for item in raw["r"]))
        for raw in _json_lines(path)
    ]


def weka_upstream(path: Path) -> Session:
    """`weka-claude-code/trace_*.json`: one session in the form in which it was published; shared blocks are counted
    here, by the rule of the compact file."""
    raw = json.loads(_existing(path).read_text(encoding="utf-8"))
    seen: dict[int, int] = {}
    rows = []
    for index, request in enumerate(raw["requests"]):
        blocks = request["hash_ids"]
        shared = next((depth for depth, block in enumerate(blocks) if block not in seen), len(blocks))
        rows.append(
            SessionRow(
                "tool_result" in request.get("input_types", ()),
                seen[blocks[shared - 1]] if shared else -1,
                shared,
                request["in"],
                request["out"],
                request["t"],
                request.get("think_time"),
                request.get("api_time"),
                {"tool_use": "t", "end_turn": "e"}.get(request.get("stop") or "", ""),
            )
        )
        seen.update(dict.fromkeys(blocks, index))
    return Session(raw["id"], raw["tool_tokens"], raw["system_tokens"], tuple(rows))


def tau_bench_turns(path: Path) -> list[int]:
    """`tau-bench/gpt-4o-airline.json.gz`: model messages of each trajectory."""
    with gzip.open(_existing(path), "rt", encoding="utf-8") as file:
        trajectories = json.load(file)
    return [sum(message["role"] == "assistant" for message in each["traj"]) for each in trajectories]


def lmcache_agent(path: Path) -> list[ModelCall]:
    """One file of `lmcache-agent/*/`, in time order (the file is not)."""
    calls = [
        ModelCall(row["timestamp"] / 1e6, row["session_id"], row["input"], row["output"]) for row in _json_lines(path)
    ]
    return sorted(calls, key=lambda call: call.time_s)


def _weka_item(raw: object) -> SessionRow | SubAgent:
    if isinstance(raw, dict):
        return SubAgent(tuple(_weka_row(row) for row in raw["sub"]), raw["t"], raw["d"])
    assert isinstance(raw, list)
    return _weka_row(raw)


def _weka_row(raw: list[Any]) -> SessionRow:
    kind, parent, shared, tokens_in, tokens_out, start, gap, server, _, stop, _ = raw
    return SessionRow(kind == "t", parent, shared, tokens_in, tokens_out, start, gap, server, stop)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with _open_text(_existing(path)) as file:
        yield from (json.loads(line) for line in file if line.strip())


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8")
    return path.open(encoding="utf-8")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise BadRequest(
            expected="a trace file", got=str(path), at="--trace", hint="See SOURCES.md of the trace folder."
        )
    return path


def _azure_time(text: str) -> float:
    """Seconds; the file has 100 ns digits, one more than `datetime` reads."""
    return datetime.fromisoformat(text[:26]).timestamp()
