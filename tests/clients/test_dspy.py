"""dspy: its chat and responses engines, and a schema."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import OPENAI_BASE, QUESTION

pytestmark = pytest.mark.clients


def model(kind: str = "chat", max_tokens: int = 100) -> object:
    import dspy

    where = {"api_base": OPENAI_BASE, "api_key": "none"}
    return dspy.LM("openai/m", model_type=kind, **where, cache=False, temperature=0, max_tokens=max_tokens)


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_calls(kind: str) -> None:
    (said,) = model(kind, 12)(QUESTION)
    assert said["text"] if isinstance(said, dict) else said


def test_schema_is_kept() -> None:
    """dspy's adapters ask for schemas only of models in a list of its own; asked for by hand, they hold."""
    import json

    schema = {"type": "object", "properties": {"verdict": {"enum": ["true", "false"]}}, "required": ["verdict"]}
    form = {"type": "json_schema", "json_schema": {"name": "v", "schema": schema, "strict": True}}
    (said,) = model()("Is water wet?", response_format=form)
    assert json.loads(said)["verdict"] in ("true", "false")
