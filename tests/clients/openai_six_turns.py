"""The conversation of T8 over openai-python itself, for either major and for what wraps it without changing it."""

from collections.abc import Callable
from typing import Any

from six_turns import MAX_TOKENS, QUESTIONS, RESULT, SYSTEM, TOOL


def talk(create: Callable[..., Any]) -> None:
    """create  chat.completions.create, or a function of the same shape"""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        called = _ask(create, messages, "required")
        messages.append(called.model_dump(exclude_none=True) if hasattr(called, "model_dump") else called)
        messages.append({"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": RESULT})
        said = _ask(create, messages, "none")
        messages.append({"role": "assistant", "content": said.content})


def _ask(create: Callable[..., Any], messages: list[Any], choice: str) -> Any:
    limits = {"max_tokens": 200 if choice == "required" else MAX_TOKENS, "parallel_tool_calls": False}
    answer = create(model="m", messages=messages, tools=[TOOL], tool_choice=choice, temperature=0, **limits)
    return answer.choices[0].message
