"""openai-agents: chat and responses, a tool round, an output type."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION
from six_turns import DESCRIPTION, MAX_TOKENS, NAME, PARAMETERS, QUESTIONS, RESULT, SYSTEM, six_turns

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


@pytest.mark.parametrize("kind", ["chat", "responses"])
async def test_six_turns(kind: str) -> None:
    from importlib.metadata import version

    from agents import Agent, FunctionTool, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner
    from openai import AsyncOpenAI

    async def look_up(context: object, arguments: str) -> str:
        return RESULT

    tool = FunctionTool(NAME, DESCRIPTION, PARAMETERS, look_up)
    model = (OpenAIChatCompletionsModel if kind == "chat" else OpenAIResponsesModel)(
        "m", AsyncOpenAI(base_url=OPENAI_BASE)
    )

    def agent(choice: str, max_tokens: int) -> Agent:
        settings = ModelSettings(tool_choice=choice, parallel_tool_calls=False, max_tokens=max_tokens, temperature=0)
        behaviour = {"instructions": SYSTEM, "model": model, "tool_use_behavior": "stop_on_first_tool"}
        return Agent(name="a", tools=[tool], model_settings=settings, **behaviour)

    items: list = []
    with six_turns(f"openai-agents {version('openai-agents')} {kind}"):
        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            items = (await Runner.run(agent("required", 200), items)).to_input_list()
            items = (await Runner.run(agent("none", MAX_TOKENS), items)).to_input_list()
