"""Whatever the cut of the deltas, a format's parts joined are the same, and arguments come out byte for byte."""

from collections.abc import Callable, Iterator

import pytest

from ramet.runtime.serve.parts import (
    CallArguments,
    CallBegin,
    CallEnd,
    Chain,
    Parser,
    Part,
    ReasoningPart,
    TextPart,
)
from ramet.runtime.serve.reasoning.think_tags import ThinkParser
from ramet.runtime.serve.tools import hermes, llama3, mistral, plain_json
from ramet.runtime.serve.tools.base import Tool
from ramet.runtime.serve.tools.registry import find_format

TOOLS = [Tool(name, "", {"type": "object"}, False, {}) for name in ("get_weather", "add")]
ODD = '{"b":"é/\\u00e9","a":1.50, "q":"a \\"}{\\" b"}'

Joined = tuple[str, str, list[tuple[str, str]]]

CASES: list[tuple[str, Callable[[], Parser], str, Joined]] = [
    ("text", lambda: hermes.parser(TOOLS), "Just text <b> here.", ("Just text <b> here.", "", [])),
    (
        "hermes",
        lambda: hermes.parser(TOOLS),
        f'<tool_call>\n{{"name": "add", "arguments": {ODD}}}\n</tool_call>',
        ("", "", [("add", ODD)]),
    ),
    (
        "hermes two after text",
        lambda: hermes.parser(TOOLS),
        (
            'Let me see.<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>\n'
            '<tool_call>{"arguments": {"city": "Oslo"}, "name": "get_weather"}</tool_call>'
        ),
        ("Let me see.", "", [("add", "{}"), ("get_weather", '{"city": "Oslo"}')]),
    ),
    (
        "hermes cut short",
        lambda: hermes.parser(TOOLS),
        '<tool_call>{"name": "add", "arguments": {"a": 1',
        ("", "", [("add", '{"a": 1')]),
    ),
    ("json", lambda: plain_json.parser(TOOLS), f'{{"name":"add","arguments":{ODD}}}', ("", "", [("add", ODD)])),
    (
        "json two",
        lambda: plain_json.parser(TOOLS),
        '{"name": "add", "arguments": {"a": [1, 2]}}\n{"name": "add", "arguments": {"a": []}}',
        ("", "", [("add", '{"a": [1, 2]}'), ("add", '{"a": []}')]),
    ),
    (
        "json of another kind",
        lambda: plain_json.parser(TOOLS),
        '{"name": "Bo", "x": 1}',
        ('{"name": "Bo", "x": 1}', "", []),
    ),
    (
        "json quoted",
        lambda: plain_json.parser(TOOLS),
        '{"name":"add","arguments":"{\\"a\\":1}"}',
        ("", "", [("add", '{"a":1}')]),
    ),
    (
        "llama3",
        lambda: llama3.parser(TOOLS),
        '<|python_tag|>{"name": "add", "parameters": {"a": 1 }}; {"name": "add", "parameters": {}}',
        ("", "", [("add", '{"a": 1 }'), ("add", "{}")]),
    ),
    (
        "mistral list",
        lambda: mistral.parser(TOOLS),
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": "]"}}, {"name": "add", "arguments": {}}]',
        ("", "", [("add", '{"a": "]"}'), ("add", "{}")]),
    ),
    (
        "mistral named",
        lambda: mistral.parser(TOOLS),
        'Hm.[TOOL_CALLS]add[ARGS]{"a": {"b": "}"}}[TOOL_CALLS]get_weather[ARGS]{}',
        ("Hm.", "", [("add", '{"a": {"b": "}"}}'), ("get_weather", "{}")]),
    ),
    (
        "reasoning, then a call",
        lambda: Chain(ThinkParser(), hermes.parser(TOOLS)),
        '<think>\nI < must </th think\n</think>\n\n<tool_call>{"name": "add", "arguments": {}}</tool_call>',
        ("", "I < must </th think\n", [("add", "{}")]),
    ),
    (
        "reasoning opened by the prompt",
        lambda: Chain(ThinkParser(inside=True), hermes.parser(TOOLS)),
        "a</think>b",
        ("b", "a", []),
    ),
]


def joined(parts: list[Part]) -> Joined:
    text = "".join(p.text for p in parts if isinstance(p, TextPart))
    reasoning = "".join(p.text for p in parts if isinstance(p, ReasoningPart))
    begun = [p for p in parts if isinstance(p, CallBegin)]
    assert [p.call for p in begun] == list(range(len(begun)))
    assert [p.call for p in parts if isinstance(p, CallEnd)] == list(range(len(begun)))
    arguments = ["".join(p.text for p in parts if isinstance(p, CallArguments) and p.call == b.call) for b in begun]
    return text, reasoning, [(b.name, a) for b, a in zip(begun, arguments, strict=True)]


def run(parser: Parser, pieces: list[str]) -> Joined:
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined(parts + parser.finish())


def cuts(text: str) -> Iterator[list[str]]:
    yield [text]
    yield list(text)
    for size in (2, 3, 5, 7):
        yield [text[i : i + size] for i in range(0, len(text), size)]
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]


@pytest.mark.parametrize(("make", "text", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_parts_do_not_depend_on_the_cut(make: Callable[[], Parser], text: str, expected: Joined) -> None:
    for pieces in cuts(text):
        assert run(make(), pieces) == expected, pieces


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3"),
        ("<|im_start|>", "json"),
        (None, "json"),
    ],
)
def test_format_is_found_in_the_template(template: str | None, name: str) -> None:
    assert name == find_format(template).NAME
