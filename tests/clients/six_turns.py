"""Acceptance T8: one conversation of six turns with a tool, through every client, and what the cache found again.

A turn is a question, a forced call, the tool's result and an answer in words: two requests, each of which resends all
that came before. What was found is read from the server's own log line of each request, so that it is the same measure
for clients that hide `usage`. Reusable is whatever the request before it left behind: its prompt and what it generated,
all but the last token, whose KV was never computed.
"""

import itertools
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from shared import BASE

NUM_TURNS = 6
SYSTEM = (
    "You are a careful travel assistant. You look up the weather with the tool before you answer, and you answer in "
    "one short sentence. Places are given as the user spells them, with all their accents."
)
QUESTIONS = [f"What will the weather be like on day {turn} in São Paulo?" for turn in range(1, NUM_TURNS + 1)]
NAME = "weather"
DESCRIPTION = "The weather of a place on a day."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"enum": ['São Paulo "centro"', "Zürich/Höngg"]},
        "day": {"enum": [1, 2, 3, 4, 5, 6]},
        "units": {"type": "object", "properties": {"metric": {"type": "boolean"}}, "required": ["metric"],
                  "additionalProperties": False},
    },
    "required": ["place", "day", "units"],
    "additionalProperties": False,
}  # fmt: skip
"""Accents, a quotation mark, a slash and a nested object: clients write them out again in ways of their own."""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS},
}
RESULT = json.dumps({"sky": "clear", "degrees": 24.5})
MAX_TOKENS = 48
WANTED = 0.9
"""Share of what is reusable that turn three has to find."""


class Request(NamedTuple):
    """One log line."""

    prompt: int
    cached: int
    new: int


class Conversation:
    """Collects the requests of one client and judges them at the end."""

    def __init__(self, client: str) -> None:
        self.client = client
        self._log = Path(os.environ["RAMET_LOG_FILE"])
        self._start = self._log.stat().st_size
        httpx.post(f"{BASE}/flush_cache").raise_for_status()  # or the one before has left the same words there

    def requests(self, count: int) -> list[Request]:
        """The first `count` log lines since the start; the last may come a moment after its answer."""
        end = time.monotonic() + 5
        while len(found := self._lines()) < count and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def _lines(self) -> list[Request]:
        with self._log.open("rb") as file:
            file.seek(self._start)
            text = file.read().decode()
        found = re.findall(r"prompt=(\d+) cached=(\d+) new=(\d+)", text)
        return [Request(*map(int, numbers)) for numbers in found]

    def judge(self, per_turn: int = 2) -> None:
        """Assert the share of turn three, and write a row of the table."""
        lines = self.requests(NUM_TURNS * per_turn)
        assert len(lines) == NUM_TURNS * per_turn, f"expected {NUM_TURNS * per_turn} requests, got {lines}"
        shares = [
            now.cached / min(before.prompt + before.new - 1, now.prompt) for before, now in itertools.pairwise(lines)
        ]
        third = [2 * per_turn + step for step in range(per_turn)]
        worst = min(shares[number - 1] for number in third)
        lowest = min(shares)
        tokens = ", ".join(f"{lines[number].cached} of {lines[number].prompt}" for number in third)
        _write_row(self.client, f"{worst:.3f}", f"{lowest:.3f}", tokens)
        assert worst >= WANTED, f"{self.client}: turn 3 found {worst:.2f} of what was reusable: {lines}"


@contextmanager
def six_turns(client: str, per_turn: int = 2) -> Iterator[Conversation]:
    """Nobody else talks to the server meanwhile: scripts/test-clients runs one client at a time."""
    conversation = Conversation(client)
    yield conversation
    conversation.judge(per_turn)


def _write_row(*cells: str) -> None:
    with open(os.environ["RAMET_TABLE"], "a", encoding="utf-8") as table:
        table.write("\t".join(cells) + "\n")
