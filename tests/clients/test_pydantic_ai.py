"""pydantic-ai: output tools, native output, streaming, OpenAI and Anthropic models."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import BASE, OPENAI_BASE, QUESTION

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
