"""guidance: always streamed with logprobs (acceptance T6)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE

pytestmark = pytest.mark.clients


def test_gen() -> None:
    from guidance import assistant, gen, user
    from guidance.models import OpenAI

    model = OpenAI("m", base_url=OPENAI_BASE, api_key="none")
    with user():
        model += "Say hello."
    with assistant():
        model += gen("answer", max_tokens=8)
    assert model["answer"]
