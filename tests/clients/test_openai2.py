"""openai-python 2.x: whole, streamed, forced tool, parsed schema."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from openai_six_turns import talk
from shared import OPENAI_BASE, QUESTION
from six_turns import six_turns

pytestmark = pytest.mark.clients


def test_everything() -> None:
    import json

    import openai
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    client = openai.OpenAI(base_url=OPENAI_BASE)
    messages = [{"role": "user", "content": QUESTION}]
    whole = client.chat.completions.create(model="m", messages=messages, max_tokens=8, temperature=0)
    stream = client.chat.completions.create(model="m", messages=messages, max_tokens=8, temperature=0, stream=True)
    assert whole.choices[0].message.content == "".join(c.choices[0].delta.content or "" for c in stream)
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    with client.chat.completions.stream(
        model="m", messages=messages, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=200
    ) as events:
        final = events.get_final_completion()
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments)["city"] in ("Paris", "Oslo")
    parsed = client.chat.completions.parse(
        model="m", messages=messages, response_format=Person, max_tokens=400, temperature=0
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)


def test_six_turns() -> None:
    import openai

    with six_turns(f"openai {openai.__version__}"):
        talk(openai.OpenAI(base_url=OPENAI_BASE).chat.completions.create)
