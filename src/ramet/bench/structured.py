"""`ramet bench structured`: schemas on the real model. Is every answer legal, and what does it cost beside free text?

Correct first: each answer at temperature 1 must parse, must be valid by the schema validator and must not have run out
of tokens; greedy answers must be the same with forced drafts and without. Then the cost: tokens a second of eight
streams under schemas against eight free ones, and model steps with drafts against without.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ramet.bench.form import Bar, Measured, NotCorrect
from ramet.constrained.json_schema.lower import validate_final
from ramet.constrained.spec import JsonSchema
from ramet.runtime.build import build_engine
from ramet.runtime.local_client import LocalClient
from ramet.runtime.types import Delta, Finished, GenerateSpec, Message, MessagesPiece, ProgramSpec, Sampling

BARS = (
    Bar("valid_share", 1.0, ">="),
    Bar("out_of_tokens", 0, "<="),
    Bar("throughput_x_free", 0.95, ">="),
    Bar("draft_steps_x", 1.15, ">="),
    Bar("greedy_changed", 0, "<="),
)
_MAX_TOKENS = 512
_STRING = {"type": "string", "maxLength": 24}
_FIELDS: dict[str, Any] = {
    "name": _STRING,
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "price": {"type": "number", "minimum": 0, "maximum": 1000},
    "mood": {"enum": ["good", "bad", "unsure"]},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "minItems": 1, "maxItems": 3},
    "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    "day": {"type": "string", "format": "date"},
    "open": {"type": "boolean"},
    "place": {
        "type": "object",
        "properties": {"city": _STRING, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 40}]},
}


class Answer(NamedTuple):
    """One generation."""

    text: str
    num_tokens: int
    reason: str


def schemas(count: int = 20) -> list[dict[str, Any]]:
    """Closed objects of two to six of the fields, no two alike."""
    names = list(_FIELDS)
    chosen = [[names[(i + j * (1 + i // 10)) % len(names)] for j in range(2 + i % 5)] for i in range(count)]
    return [
        {
            "type": "object",
            "properties": {name: _FIELDS[name] for name in dict.fromkeys(fields)},
            "required": list(dict.fromkeys(fields)),
            "additionalProperties": False,
        }
        for fields in chosen
    ]


def measure(options: Mapping[str, object]) -> Measured:
    """Options: `rounds` (generations a schema, 10), `prompts` (greedy comparisons, 100), `backend`."""
    rounds, prompts = int(str(options.get("rounds", 10))), int(str(options.get("prompts", 100)))
    backend: Any = options.get("backend", "auto")
    with build_engine(kv_tokens=16_384, backend=backend) as client:
        return asyncio.run(_measure(client, rounds, prompts))


async def _measure(client: LocalClient, rounds: int, prompts: int) -> Measured:
    figures = await _validity(client, rounds)
    figures |= await _drafts(client, prompts)
    figures["throughput_x_free"] = await _throughput(client)
    return Measured(figures=figures, bars=BARS)


async def _validity(client: LocalClient, rounds: int) -> dict[str, float]:
    """Every schema, many times, at temperature 1."""
    num_valid = num_cut = num_all = 0
    for schema in schemas():
        text = json.dumps(schema)
        asked = [_ask(client, "Give me an example.", text, seed=seed) for seed in range(rounds)]
        for answer in await asyncio.gather(*asked):
            num_all += 1
            num_cut += answer.reason != "stop"
            num_valid += answer.reason == "stop" and _is_valid(text, answer.text)
    if num_valid < num_all:
        raise NotCorrect(f"{num_all - num_valid} of {num_all} answers are not valid or were cut")
    return {"generations": num_all, "valid_share": num_valid / num_all, "out_of_tokens": num_cut}


def _is_valid(schema: str, text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return not validate_final(schema, value)


async def _drafts(client: LocalClient, prompts: int) -> dict[str, float]:
    """Greedy, compact form: the words must not change, the steps must."""
    steps: dict[bool, int] = {}
    said: dict[bool, list[str]] = {}
    cases = [(f"Describe item {index}.", schemas()[index % 20]) for index in range(prompts)]
    for drafts in (False, True):
        before = (await client.statistics()).steps_total
        found = [await _ask(client, ask, json.dumps(schema), drafts=drafts, compact=True) for ask, schema in cases]
        steps[drafts] = (await client.statistics()).steps_total - before
        said[drafts] = [answer.text for answer in found]
    changed = sum(left != right for left, right in zip(said[False], said[True], strict=True))
    return {"greedy_prompts": prompts, "greedy_changed": changed, "draft_steps_x": steps[False] / steps[True]}


async def _throughput(client: LocalClient) -> float:
    """Tokens a second of eight streams under schemas over that of eight free ones; medians of alternating rounds.

    The schemas ask for long lists, and both sides stop at the same length: a stream that ends early would leave the
    others a smaller batch, and that is not the cost of a grammar.
    """
    chosen = [{"type": "array", "items": schema, "minItems": 12} for schema in schemas(8)]
    await _rate(client, chosen, structured=True)  # what is compiled and looked up once is not the cost of a token
    ratios = []
    for _ in range(5):
        structured = await _rate(client, chosen, structured=True)
        ratios.append(structured / await _rate(client, chosen, structured=False))
    return statistics.median(ratios)


async def _rate(client: LocalClient, chosen: Sequence[dict[str, Any]], *, structured: bool) -> float:
    began = time.perf_counter()
    answers = await asyncio.gather(
        *(
            _ask(client, f"Tell me of {i}.", json.dumps(schema) if structured else None, seed=i, drafts=False, most=96)
            for i, schema in enumerate(chosen)
        )
    )
    return sum(answer.num_tokens for answer in answers) / (time.perf_counter() - began)


async def _ask(
    client: LocalClient,
    question: str,
    schema: str | None,
    *,
    seed: int | None = None,
    drafts: bool = True,
    compact: bool = False,
    most: int = _MAX_TOKENS,
) -> Answer:
    """One turn of at most `most` tokens; greedy without a seed. Free text does not end by itself."""
    grammar = None if schema is None else JsonSchema(schema=schema, whitespace="compact" if compact else "bounded")
    spec = GenerateSpec(
        max_tokens=most,
        ignore_eos=schema is None,
        grammar=grammar,
        grammar_drafts=drafts,
        sampling=Sampling(temperature=0.0 if seed is None else 1.0, seed=seed),
    )
    branch = await client.open(ProgramSpec())
    messages = [Message(role="user", content=question)]
    await client.extend(branch, [MessagesPiece(messages=messages, add_generation_prompt=True)])
    text, num_tokens, reason = "", 0, "error"
    async for event in client.generate(branch, spec):
        if isinstance(event, Delta):
            text, num_tokens = text + event.text, num_tokens + len(event.tokens)
        elif isinstance(event, Finished):
            reason = event.reason
    await client.close(branch, program=True)
    return Answer(text, num_tokens, reason)
