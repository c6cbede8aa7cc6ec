"""pydantic-ai: output tools, native output, streaming, OpenAI and Anthropic models."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import BASE, OPENAI_BASE, QUESTION
from six_turns import DESCRIPTION, MAX_TOKENS, NAME, PARAMETERS, QUESTIONS, RESULT, SYSTEM, six_turns

pytestmark = pytest.mark.clients


def models() -> list:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = OpenAIProvider(base_url=OPENAI_BASE, api_key="none")
    return [
        OpenAIChatModel("m", provider=openai),
        OpenAIResponsesModel("m", provider=openai),
        AnthropicModel("m", provider=AnthropicProvider(base_url=BASE, api_key="none")),
    ]


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_typed_output_and_stream(index: int) -> None:
    from pydantic import BaseModel
    from pydantic_ai import Agent

    class Weather(BaseModel):
        city: str
        degrees: int

    model = models()[index]
    agent = Agent(model, output_type=Weather, model_settings={"temperature": 0, "max_tokens": 200})
    assert isinstance((await agent.run(QUESTION)).output, Weather)
    plain = Agent(model, model_settings={"max_tokens": 12})
    async with plain.run_stream("Say hello.") as stream:
        assert "".join([piece async for piece in stream.stream_text(delta=True)])


async def test_native_output() -> None:
    from pydantic import BaseModel
    from pydantic_ai import Agent, NativeOutput

    class Weather(BaseModel):
        city: str
        degrees: int

    agent = Agent(models()[0], output_type=NativeOutput(Weather), model_settings={"temperature": 0, "max_tokens": 200})
    assert isinstance((await agent.run(QUESTION)).output, Weather)


@pytest.mark.parametrize("index", [0, 1, 2], ids=["chat", "responses", "anthropic"])
async def test_six_turns(index: int) -> None:
    import pydantic_ai
    from pydantic_ai.direct import model_request
    from pydantic_ai.messages import ModelMessage, ModelRequest, SystemPromptPart, ToolReturnPart, UserPromptPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    model = models()[index]
    tool = ToolDefinition(name=NAME, description=DESCRIPTION, parameters_json_schema=PARAMETERS)
    parameters = ModelRequestParameters(function_tools=[tool])
    history: list[ModelMessage] = []

    async def ask(choice: str, max_tokens: int) -> None:
        settings = {"temperature": 0, "max_tokens": max_tokens, "tool_choice": choice, "parallel_tool_calls": False}
        answer = await model_request(
            model, history, model_settings=settings, model_request_parameters=parameters, instrument=False
        )
        history.append(answer)

    with six_turns(f"pydantic-ai {pydantic_ai.__version__} {['chat', 'responses', 'anthropic'][index]}"):
        for question in QUESTIONS:
            system = [] if history else [SystemPromptPart(SYSTEM)]
            history.append(ModelRequest([*system, UserPromptPart(question)]))
            await ask("required", 200)
            call = history[-1].tool_calls[0]
            history.append(ModelRequest([ToolReturnPart(NAME, RESULT, call.tool_call_id)]))
            await ask("none", MAX_TOKENS)
