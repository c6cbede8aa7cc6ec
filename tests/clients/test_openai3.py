"""openai-python 3.x and anthropic: what make test has not already asked of them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from openai_six_turns import talk
from shared import BASE, OPENAI_BASE
from six_turns import DESCRIPTION, MAX_TOKENS, NAME, PARAMETERS, QUESTIONS, RESULT, SYSTEM, six_turns

pytestmark = pytest.mark.clients


def test_six_turns_openai() -> None:
    import openai

    with six_turns(f"openai {openai.__version__}"):
        talk(openai.OpenAI(base_url=OPENAI_BASE).chat.completions.create)


def test_six_turns_anthropic() -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=BASE)
    tools = [{"name": NAME, "description": DESCRIPTION, "input_schema": PARAMETERS}]
    messages: list = []

    def ask(kind: str, max_tokens: int) -> anthropic.types.Message:
        return client.messages.create(
            model="m",
            max_tokens=max_tokens,
            system=SYSTEM,
            messages=messages,
            tools=tools,
            tool_choice={"type": kind},
            extra_body={"temperature": 0},
        )

    with six_turns(f"anthropic {anthropic.__version__}"):
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            called = ask("any", 200)
            messages.append({"role": "assistant", "content": called.content})
            use = next(block for block in called.content if block.type == "tool_use")
            messages.append(
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": RESULT}]}
            )
            messages.append({"role": "assistant", "content": ask("none", MAX_TOKENS).content})
