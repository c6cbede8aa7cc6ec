"""instructor: forced tools and JSON Schema mode."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION

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
