"""instructor: forced tools and JSON Schema mode."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION
from six_turns import QUESTIONS, RESULT, SYSTEM, six_turns

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_modes(mode: str) -> None:
    import instructor
    import openai
    from pydantic import BaseModel

    class Weather(BaseModel):
        city: str
        degrees: int

    client = instructor.from_openai(openai.OpenAI(base_url=OPENAI_BASE, api_key="none"), mode=instructor.Mode[mode])
    found = client.chat.completions.create(
        model="m",
        response_model=Weather,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=200,
        temperature=0,
        max_retries=0,
    )
    assert isinstance(found, Weather)


def test_six_turns() -> None:
    """instructor forces its tool in every request, so a turn is one request; the user writes history back."""
    from importlib.metadata import version
    from typing import Literal

    import instructor
    import openai
    from pydantic import BaseModel

    class Weather(BaseModel):
        """The weather of a place on a day."""

        place: Literal['São Paulo "centro"', "Zürich/Höngg"]
        day: Literal[1, 2, 3, 4, 5, 6]

    client = instructor.from_openai(openai.OpenAI(base_url=OPENAI_BASE, api_key="none"), mode=instructor.Mode.TOOLS)
    messages: list = [{"role": "system", "content": SYSTEM}]
    with six_turns(f"instructor {version('instructor')}", per_turn=1):
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            limits = {"max_tokens": 200, "temperature": 0, "max_retries": 0}
            found, raw = client.chat.completions.create_with_completion(
                model="m", response_model=Weather, messages=messages, **limits
            )
            call = raw.choices[0].message.tool_calls[0]
            arguments = json.dumps(found.model_dump(), indent=1)
            function = {"name": call.function.name, "arguments": arguments}
            calls = [{"id": call.id, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
