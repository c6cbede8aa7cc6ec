"""ag2: streamed and whole, a typed answer, and six turns with a tool in the prompt."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION
from six_turns import DESCRIPTION, MAX_TOKENS, NAME, QUESTIONS, RESULT, SYSTEM, six_turns

pytestmark = pytest.mark.clients


def config(max_tokens: int, *, streaming: bool = False, **settings: object) -> object:
    from ag2.config import OpenAIConfig

    common = {"model": "m", "api_key": "none", "base_url": OPENAI_BASE, "temperature": 0, "max_retries": 0}
    return OpenAIConfig(**common, max_tokens=max_tokens, streaming=streaming, **settings)


async def test_whole_and_streamed_say_the_same() -> None:
    from ag2 import Agent

    said = [
        (await Agent("a", "Be brief.", config=config(12, streaming=streaming)).ask(QUESTION)).body
        for streaming in (False, True)
    ]
    assert said[0] and said[0] == said[1]


async def test_typed_answer() -> None:
    from ag2 import Agent
    from pydantic import BaseModel

    class Answer(BaseModel):
        ok: bool

    agent = Agent("a", "Be brief.", config=config(100), response_schema=Answer)
    assert isinstance(await (await agent.ask("Is water wet?")).content(), Answer)


async def test_six_turns() -> None:
    """The agent would go on calling for as long as it is made to, so its turns are words, with a tool in the prompt."""
    from importlib.metadata import version
    from typing import Literal

    from ag2 import Agent, tool

    @tool(name=NAME, description=DESCRIPTION)
    def weather(place: Literal['São Paulo "centro"', "Zürich/Höngg"], day: Literal[1, 2, 3, 4, 5, 6]) -> str:
        return RESULT

    agent = Agent("a", SYSTEM, config=config(MAX_TOKENS), tools=[weather])
    reply = None
    with six_turns(f"ag2 {version('ag2')} (no calls)", per_turn=1):
        for question in QUESTIONS:
            limits = config(MAX_TOKENS, tool_choice="none")
            reply = await (agent.ask(question, config=limits) if reply is None else reply.ask(question, config=limits))
