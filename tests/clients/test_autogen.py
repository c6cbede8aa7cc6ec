"""autogen-ext: its chat client, streamed and whole, an agent's tool round, and the conversation of six turns."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION
from six_turns import DESCRIPTION, MAX_TOKENS, NAME, PARAMETERS, QUESTIONS, RESULT, SYSTEM, six_turns

pytestmark = pytest.mark.clients


def model() -> object:
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    able = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True}
    return OpenAIChatCompletionClient(
        model="m", base_url=OPENAI_BASE, api_key="none", temperature=0, model_info={**able, "family": "unknown"}
    )


async def test_whole_and_streamed_say_the_same() -> None:
    from autogen_core.models import CreateResult, UserMessage

    messages = [UserMessage(content=QUESTION, source="user")]
    limits = {"max_tokens": 12}
    whole = await model().create(messages, extra_create_args=limits)
    parts = [part async for part in model().create_stream(messages, extra_create_args=limits)]
    assert isinstance(parts[-1], CreateResult) and parts[-1].content == whole.content
    assert "".join(part for part in parts[:-1]) == whole.content


async def test_agent_answers_in_a_form() -> None:
    from autogen_agentchat.agents import AssistantAgent
    from pydantic import BaseModel

    class Answer(BaseModel):
        ok: bool

    agent = AssistantAgent("a", model(), output_content_type=Answer, system_message="Be brief.")
    result = await agent.run(task="Is water wet?")
    assert isinstance(result.messages[-1].content, Answer)


async def test_six_turns() -> None:
    from importlib.metadata import version

    from autogen_core.models import (
        AssistantMessage,
        FunctionExecutionResult,
        FunctionExecutionResultMessage,
        SystemMessage,
        UserMessage,
    )

    tool = {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}
    messages: list = [SystemMessage(content=SYSTEM)]

    async def ask(choice: str, max_tokens: int) -> object:
        limits = {"max_tokens": max_tokens, "parallel_tool_calls": False}
        said = await model().create(messages, tools=[tool], tool_choice=choice, extra_create_args=limits)
        messages.append(AssistantMessage(content=said.content, source="a"))
        return said.content

    with six_turns(f"autogen-ext {version('autogen-ext')}"):
        for question in QUESTIONS:
            messages.append(UserMessage(content=question, source="user"))
            (call,) = await ask("required", 200)
            result = FunctionExecutionResult(content=RESULT, name=NAME, call_id=call.id, is_error=False)
            messages.append(FunctionExecutionResultMessage(content=[result]))
            await ask("none", MAX_TOKENS)
