"""haystack: whole, streamed, a forced tool, and the conversation of six turns."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION
from six_turns import DESCRIPTION, MAX_TOKENS, NAME, PARAMETERS, QUESTIONS, RESULT, SYSTEM, six_turns

pytestmark = pytest.mark.clients


def generator(**settings: object) -> object:
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.utils import Secret

    return OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        model="m",
        api_base_url=OPENAI_BASE,
        generation_kwargs={"temperature": 0, **settings},
    )


def weather() -> object:
    from haystack.tools import Tool

    return Tool(name=NAME, description=DESCRIPTION, parameters=PARAMETERS, function=lambda **arguments: RESULT)


def test_whole_and_streamed_say_the_same() -> None:
    from haystack.dataclasses import ChatMessage

    messages = [ChatMessage.from_user(QUESTION)]
    whole = generator(max_tokens=12).run(messages)["replies"][0]
    pieces = []
    streamed = generator(max_tokens=12).run(messages, streaming_callback=pieces.append)["replies"][0]
    assert whole.text and streamed.text == whole.text and len(pieces) > 1


def test_forced_tool_streamed() -> None:
    from haystack.dataclasses import ChatMessage

    forced = generator(max_tokens=200, tool_choice="required", parallel_tool_calls=False)
    reply = forced.run([ChatMessage.from_user(QUESTION)], tools=[weather()], streaming_callback=lambda chunk: None)
    (call,) = reply["replies"][0].tool_calls
    assert call.tool_name == NAME and call.id and call.arguments["place"]


def test_six_turns() -> None:
    from importlib.metadata import version

    from haystack.dataclasses import ChatMessage

    asks = generator(max_tokens=200, tool_choice="required", parallel_tool_calls=False)
    says = generator(max_tokens=MAX_TOKENS, tool_choice="none")
    messages = [ChatMessage.from_system(SYSTEM)]
    with six_turns(f"haystack {version('haystack-ai')}"):
        for question in QUESTIONS:
            messages.append(ChatMessage.from_user(question))
            called = asks.run(messages, tools=[weather()])["replies"][0]
            messages.append(called)
            messages.append(ChatMessage.from_tool(RESULT, origin=called.tool_calls[0]))
            messages.append(says.run(messages, tools=[weather()])["replies"][0])
