"""llama-index over openai-like: whole, streamed, a forced tool, and the conversation of six turns."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION
from six_turns import MAX_TOKENS, QUESTIONS, RESULT, SYSTEM, TOOL, six_turns

pytestmark = pytest.mark.clients


def chat(max_tokens: int) -> object:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model="m",
        api_base=OPENAI_BASE,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=8192,
        max_tokens=max_tokens,
        temperature=0,
    )


def test_whole_streamed_and_completed() -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    messages = [ChatMessage(role="user", content=QUESTION)]
    whole = chat(12).chat(messages).message.content
    assert whole and "".join(part.delta or "" for part in chat(12).stream_chat(messages)) == whole
    plain = OpenAILike(model="m", api_base=OPENAI_BASE, api_key="none", context_window=8192, max_tokens=4)
    assert plain.complete("The sky is").text


def test_six_turns() -> None:
    from importlib.metadata import version

    from llama_index.core.llms import ChatMessage

    messages = [ChatMessage(role="system", content=SYSTEM)]

    def ask(choice: str, max_tokens: int) -> ChatMessage:
        options = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
        return chat(max_tokens).chat(messages, **options).message

    with six_turns(f"llama-index openai-like {version('llama-index-llms-openai-like')}"):
        for question in QUESTIONS:
            messages.append(ChatMessage(role="user", content=question))
            messages.append(ask("required", 200))
            (call,) = chat(1).get_tool_calls_from_response(_response(messages[-1]))
            told = {"tool_call_id": call.tool_id}
            messages.append(ChatMessage(role="tool", content=RESULT, additional_kwargs=told))
            messages.append(ask("none", MAX_TOKENS))


def _response(message: object) -> object:
    from llama_index.core.llms import ChatResponse

    return ChatResponse(message=message)
