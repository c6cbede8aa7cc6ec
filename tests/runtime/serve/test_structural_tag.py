"""Structural tags in both forms accept exactly the texts that they describe, and errors name the place."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ramet.constrained.compile import compile
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import BadRequest, NotBuilt
from ramet.runtime.serve.adapters.structural_tag import structural_tag
from ramet.testing import ByteTokenizer

sys.path.insert(0, str(Path(__file__).parent))
from scripted import served

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TAG = {"begin": "<f=weather>", "content": {"type": "json_schema", "json_schema": CITY}, "end": "</f>"}
CALL = '<f=weather>{"city": "Rome"}</f>'
OLD = {
    "type": "structural_tag",
    "structures": [{"begin": "<f=weather>", "schema": CITY, "end": "</f>"}],
    "triggers": ["<f="],
}


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(ByteTokenizer())


def accepts(value: Any, text: str) -> bool:
    grammar = compile(structural_tag(value, "$"), vocabulary())
    return grammar.initial().advance_bytes(text.encode()).accepting


def new(node: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": node}


def triggered(**more: Any) -> dict[str, Any]:
    return new({"type": "triggered_tags", "triggers": ["<f="], "tags": [{"type": "tag", **TAG}], **more})


@pytest.mark.parametrize("form", [OLD, json.dumps(OLD), triggered()], ids=["old", "text", "new"])
def test_text_is_free_until_a_trigger_and_the_tag_is_not(form: Any) -> None:
    for right in ("", "just words < 3", CALL, f"It is {CALL} and {CALL}, so.", CALL + CALL):
        assert accepts(form, right), right
    for wrong in ("<f=", "<f=other>", '<f=weather>{"town": 1}</f>', f"{CALL} and <f=weather>"):
        assert not accepts(form, wrong), wrong


def test_at_least_one_and_the_first_only() -> None:
    needed, single = triggered(at_least_one=True), triggered(stop_after_first=True)
    assert accepts(needed, f"well {CALL} done") and not accepts(needed, "well")
    assert accepts(single, f"well {CALL}") and accepts(single, "well") and not accepts(single, f"{CALL} done")
    both = triggered(at_least_one=True, stop_after_first=True)
    assert accepts(both, CALL) and not accepts(both, "") and not accepts(both, CALL + CALL)


def test_reasoning_then_a_call_is_a_sequence() -> None:
    think = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
    form = new({"type": "sequence", "elements": [think, {"type": "any_text"}, {"type": "tag", **TAG}]})
    assert accepts(form, f"<think>so < so</think>Let me see.{CALL}")
    assert accepts(form, f"<think></think>{CALL}")
    assert not accepts(form, CALL) and not accepts(form, "<think>a</think>b")


def test_separated_tags_choices_patterns_and_constants() -> None:
    many = new(
        {"type": "tags_with_separator", "tags": [{"type": "tag", **TAG}], "separator": ",", "at_least_one": True}
    )
    assert accepts(many, f"{CALL},{CALL}") and not accepts(many, "") and not accepts(many, f"{CALL}{CALL}")
    either = new(
        {"type": "or", "elements": [{"type": "const_string", "value": "no"}, {"type": "regex", "pattern": "[0-9]{2}"}]}
    )
    assert accepts(either, "no") and accepts(either, "42") and not accepts(either, "4")
    ended = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": ["!", "?"]}
    assert accepts(new(ended), "what?") and accepts(new(ended), "what!") and not accepts(new(ended), "what")


@pytest.mark.parametrize(
    ("value", "at"),
    [
        ("{", "$"),
        ([], "$"),
        ({"structures": [], "triggers": ["<"]}, "$.structures"),
        ({**OLD, "triggers": ["["]}, "$.triggers"),
        ({**OLD, "triggers": [""]}, "$.triggers"),
        ({"structures": [{"begin": "<f>", "schema": 3, "end": ""}], "triggers": ["<"]}, "$.structures[0].schema"),
        (new({"type": "bag"}), "$.format.type"),
        (new({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "regex"}]}), "$.format.elements[1]"),
        (new({"type": "or", "elements": [{"type": "const_string"}]}), "$.format.elements[0].value"),
        (new({"type": "tag", "begin": "<", "content": {"type": "any_text"}}), "$.format.end"),
    ],
)
def test_errors_name_the_place(value: Any, at: str) -> None:
    with pytest.raises(BadRequest) as caught:
        structural_tag(value, "$")
    assert caught.value.at == at


def test_what_is_not_built_says_so() -> None:
    with pytest.raises(NotBuilt, match="qwen_xml_parameter"):
        structural_tag(new({"type": "qwen_xml_parameter", "json_schema": CITY}), "$")


@pytest.mark.parametrize("field", ["response_format", "structured_outputs"])
async def test_over_http_the_model_can_only_write_such_text(field: str) -> None:
    value = triggered(at_least_one=True, stop_after_first=True)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400}
    asked = {field: value if field == "response_format" else {"structural_tag": json.dumps(value)}}
    async with served('I call <f=weather>{"city": "Oslo"}</f> and go on') as http:
        answer = await http.post("/v1/chat/completions", json={**body, **asked})
    choice = answer.json()["choices"][0]
    assert choice["message"]["content"] == 'I call <f=weather>{"city": "Oslo"}</f>'
    assert choice["finish_reason"] == "stop"
