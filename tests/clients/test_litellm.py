"""litellm: openai, hosted_vllm and anthropic routes, stream, tools."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from openai_six_turns import talk
from shared import BASE, OPENAI_BASE, QUESTION
from six_turns import six_turns

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("route", ["openai/m", "hosted_vllm/m", "anthropic/m", "text-completion-openai/m"])
def test_routes(route: str) -> None:
    import litellm

    base = BASE if route.startswith("anthropic") else OPENAI_BASE
    arguments = dict(
        model=route, api_base=base, api_key="none", messages=[{"role": "user", "content": "Say hello."}], max_tokens=10
    )
    assert litellm.completion(**arguments).choices[0].message.content
    text = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**arguments, stream=True))
    assert text


def test_tool() -> None:
    import json

    import litellm

    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    answer = litellm.completion(
        model="openai/m",
        api_base=OPENAI_BASE,
        api_key="none",
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=200,
        temperature=0,
    )
    assert "city" in json.loads(answer.choices[0].message.tool_calls[0].function.arguments)


@pytest.mark.parametrize("route", ["openai/m", "hosted_vllm/m", "anthropic/m"])
def test_six_turns(route: str) -> None:
    from importlib.metadata import version

    import litellm

    base = BASE if route.startswith("anthropic") else OPENAI_BASE

    def create(model: str, **arguments: object) -> object:
        return litellm.completion(model=route, api_base=base, api_key="none", **arguments)

    with six_turns(f"litellm {version('litellm')} {route}"):
        talk(create)
