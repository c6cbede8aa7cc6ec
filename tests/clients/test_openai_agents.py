"""openai-agents: chat and responses, a tool round, an output type."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("kind", ["chat", "responses"])
async def test_tool_round_and_output_type(kind: str) -> None:
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=OPENAI_BASE)
    model = (OpenAIChatCompletionsModel if kind == "chat" else OpenAIResponsesModel)("m", client)
    called = []

    @function_tool
    def weather(city: str) -> str:
        """Weather of a city."""
        called.append(city)
        return "sunny"

    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=120, temperature=0)
    agent = Agent(name="a", instructions="Answer briefly.", model=model, tools=[weather], model_settings=settings)
    result = await Runner.run(agent, QUESTION, max_turns=4)
    assert called and isinstance(result.final_output, str)

    class Answer(BaseModel):
        ok: bool

    typed = Agent(
        name="b", model=model, output_type=Answer, model_settings=ModelSettings(max_tokens=100, temperature=0)
    )
    assert isinstance((await Runner.run(typed, "Is water wet?")).final_output, Answer)
    streamed = Runner.run_streamed(
        Agent(name="c", model=model, model_settings=ModelSettings(max_tokens=1000, temperature=0)), "Hi"
    )
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output
