"""What the routes share: the engine's client, the model's renderer and formats, the limits, the memories."""

import secrets
import time
from dataclasses import dataclass, field

from ramet.runtime.client import EngineClient
from ramet.runtime.errors import Busy
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.history import PastPrompts
from ramet.runtime.serve.kept import KeptBranches
from ramet.runtime.serve.parts import Chain, Parser, PlainText
from ramet.runtime.serve.prompt import PromptRenderer
from ramet.runtime.serve.reasoning import think_tags
from ramet.runtime.serve.splice import OwnTexts, OwnTurns
from ramet.runtime.serve.tools.base import Tool, ToolFormat
from ramet.runtime.types import ModelCard


@dataclass(slots=True, kw_only=True)
class ServeContext:
    """One served model."""

    engine: EngineClient
    card: ModelCard
    renderer: PromptRenderer
    tool_format: ToolFormat
    thinks: bool
    """The model writes its reasoning between think tags."""
    turn_opener: int | None = None
    """The special token that opens each turn of a chat; None: there is none."""
    config: ServeConfig
    kept: KeptBranches
    own_turns: OwnTurns = field(default_factory=OwnTurns)
    own_texts: OwnTexts = field(default_factory=OwnTexts)
    past_prompts: PastPrompts = field(default_factory=PastPrompts)
    in_flight: int = 0

    @property
    def served_name(self) -> str:
        return self.config.served_name or self.card.name

    def parser(self, tools: list[Tool], *, thinks: bool, reasoning_open: bool, wants_calls: bool) -> Parser:
        """A fresh parser for one choice's text. `thinks`: reasoning is to be told apart."""
        calls: Parser = self.tool_format.parser(tools) if tools and wants_calls else PlainText()
        return Chain(think_tags.ThinkParser(inside=reasoning_open), calls) if thinks else calls

    def enter(self) -> None:
        """Count a request in, or refuse it: a queue without end helps nobody."""
        if self.in_flight >= self.config.max_in_flight:
            raise Busy(f"{self.in_flight} requests are in flight, the limit of this server", retry_after_s=2)
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1


def new_id(prefix: str) -> str:
    """An id for an answer: unique, and good to read in a log."""
    return f"{prefix}{secrets.token_hex(12)}"


def now() -> int:
    """Unix seconds, whole: some clients refuse fractions."""
    return int(time.time())
