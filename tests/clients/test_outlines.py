"""outlines: from_openai with a schema, from_vllm with json and choice."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION

pytestmark = pytest.mark.clients


def test_dialects() -> None:
    from typing import Literal

    import openai
    import outlines
    from pydantic import BaseModel

    class Weather(BaseModel):
        city: str
        degrees: int

    client = openai.OpenAI(base_url=OPENAI_BASE, api_key="none")
    for make in (outlines.from_openai, outlines.from_vllm):
        model = make(client, "m")
        Weather.model_validate_json(model(QUESTION, Weather, max_tokens=200, temperature=0))
    assert outlines.from_vllm(client, "m")("Yes or no?", Literal["yes", "no"], max_tokens=4) in ("yes", "no")
