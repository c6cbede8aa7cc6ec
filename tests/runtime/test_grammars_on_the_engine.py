"""Grammars end to end on a scripted engine: what comes out is what was asked for, with its ledger and its tags."""

import asyncio
import json

import pytest
from tests.runtime.scheduler.driver import Driver

from ramet.constrained.spec import Choice, JsonSchema, Literal_, Regex, Spec, Tagged
from ramet.constrained.spec import Sequence as InOrder
from ramet.runtime.errors import GrammarRefused
from ramet.runtime.types import Delta, Event, GenerateSpec, ProgramSpec, Sampling, TextPiece
from ramet.testing import scripted_client

SCHEMA = JsonSchema(
    schema=json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    ),
    whitespace="compact",
)


async def generate(client, grammar: Spec, text: str = "go: ", **spec: object) -> list[Event]:
    branch = await client.open(ProgramSpec())
    await client.extend(branch, [TextPiece(text)])
    options = {"max_tokens": 200, "sampling": Sampling(temperature=0), **spec}
    return [event async for event in client.generate(branch, GenerateSpec(grammar=grammar, **options))]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


async def test_a_json_schema_gives_such_json() -> None:
    async with scripted_client() as client:
        for number in range(6):
            events = await generate(client, SCHEMA, f"{number}: ", sampling=Sampling(temperature=1.0, seed=number))
            value = json.loads(text_of(events))
            assert list(value) == ["name", "age"] and isinstance(value["age"], int) and len(value["name"]) <= 8
            assert events[-1].reason == "stop"
            assert {entry["status"] for entry in events[-1].ledger} <= {"exact", "stricter"}


async def test_drafts_change_nothing_but_the_number_of_steps() -> None:
    async with scripted_client() as client:
        texts, steps = [], []
        for grammar_drafts in (True, False):
            before = (await client.statistics()).steps_total
            texts.append(text_of(await generate(client, SCHEMA, grammar_drafts=grammar_drafts)))
            steps.append((await client.statistics()).steps_total - before)
        assert texts[0] == texts[1] and steps[0] < steps[1]


@pytest.mark.parametrize(
    ("grammar", "among"),
    [
        (Choice(choices=("red", "real", "re")), {"red", "real", "re"}),
        (Regex(pattern="(ab|cd){2}"), {"abab", "abcd", "cdab", "cdcd"}),
        (Literal_(text="exactly this"), {"exactly this"}),
    ],
)
async def test_other_grammars_hold_too(grammar: Spec, among: set[str]) -> None:
    async with scripted_client() as client:
        found = await asyncio.gather(*(generate(client, grammar, f"{number} ") for number in range(8)))
        assert {text_of(events) for events in found} <= among


async def test_tagged_parts_are_told_with_their_places() -> None:
    call = InOrder(
        items=(Literal_(text="<"), Tagged(name="name", item=Choice(choices=("add", "sub"))), Literal_(text=">"))
    )
    async with scripted_client() as client:
        events = await generate(client, call)
        tags = [tag for event in events if isinstance(event, Delta) for tag in event.tags]
        assert [tuple(tag) for tag in tags] == [("name", "begin", 1), ("name", "end", 4)]


async def test_a_bad_grammar_is_refused_and_the_engine_lives() -> None:
    """bugs.md 39."""
    async with scripted_client() as client:
        for bad in (JsonSchema(schema='{"type": "objec"}'), Regex(pattern="(")):
            with pytest.raises(GrammarRefused):
                await generate(client, bad)
        assert text_of(await generate(client, Literal_(text="ok"))) == "ok"
        assert (await client.statistics()).leased_pages == 0


def test_grammars_survive_preemption() -> None:
    spec = GenerateSpec(grammar=SCHEMA, max_tokens=200, sampling=Sampling(temperature=0))
    small, large = Driver(num_pages=24, page_size=4, high_water=3.0), Driver()
    for driver in (small, large):
        for number in range(6):
            driver.submit(f"{number}: ".encode(), spec, program=f"program {number}")  # branches of one would wait
        driver.run()
    assert small.scheduler.counters.preemptions > 0
    for request in range(6):
        assert small.text(request) == large.text(request)
        json.loads(small.text(request))


async def test_an_ended_grammar_wins_over_min_tokens() -> None:
    async with scripted_client() as client:
        events = await generate(client, Literal_(text="ab"), min_tokens=10)
        assert text_of(events) == "ab" and events[-1].reason == "stop"
