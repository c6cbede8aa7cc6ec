"""smolagents: content parts for every role, stop strings, a forced call."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION

pytestmark = pytest.mark.clients


def test_model_calls() -> None:
    from smolagents import OpenAIServerModel, tool
    from smolagents.models import ChatMessage, MessageRole

    @tool
    def weather(city: str) -> str:
        """Weather of a city.

        Args:
            city: its name
        """
        return "sunny"

    model = OpenAIServerModel(model_id="m", api_base=OPENAI_BASE, api_key="none", max_tokens=120, temperature=0)
    messages = [
        ChatMessage(role=MessageRole.SYSTEM, content=[{"type": "text", "text": "Be brief."}]),
        ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": QUESTION}]),
    ]
    said = model.generate(messages, stop_sequences=["Observation:", "Calling tools:"])
    assert said.token_usage.input_tokens > 0
    called = model.generate(messages, tools_to_call_from=[weather])
    assert called.tool_calls[0].function.name == "weather"
