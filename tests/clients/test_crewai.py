"""crewai: its LLM class whole, streamed and typed, and an agent that does a task."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION

pytestmark = pytest.mark.clients


def model(**settings: object) -> object:
    from crewai import LLM

    where = {"model": "openai/m", "base_url": OPENAI_BASE, "api_key": "none"}
    return LLM(**where, **{"temperature": 0, "max_tokens": 40, **settings})


def test_whole_and_streamed_say_the_same() -> None:
    whole = model().call(QUESTION)
    assert whole and model(stream=True).call(QUESTION) == whole


def test_typed() -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        ok: bool

    said = model(response_format=Answer).call("Is water wet?")
    assert isinstance(said if isinstance(said, Answer) else Answer.model_validate_json(said), Answer)


def test_a_crew_of_one() -> None:
    from crewai import Agent, Crew, Task

    agent = Agent(role="Guide", goal="Answer", backstory="Knows cities.", llm=model(), max_iter=1, verbose=False)
    task = Task(description=QUESTION, expected_output="One sentence.", agent=agent)
    assert Crew(agents=[agent], tasks=[task], verbose=False).kickoff().raw
