"""`ramet bench serve --base URL`: agent-shaped work against any OpenAI-compatible server, as its clients see it.

Five scenes: many users of one long system prompt; conversations of several turns; one prompt sampled n ways; answers
held to a JSON Schema; and short chats that stream while a long prompt comes in. Bounded work, sent to the given address
only. Correct first: every stream must end with its reason, every JSON answer must parse and have its keys, or there is
no figure.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from ramet.bench.form import Measured, NotCorrect
from ramet.lang.backends.http import HttpClient

_WORDS = ("ticket", "order", "refund", "parcel", "city", "river", "bridge", "letter", "window", "report", "stone")
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["good", "bad"]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}


class Answer(NamedTuple):
    """One streamed answer."""

    text: str
    num_prompt: int
    num_cached: int
    num_output: int
    first_s: float
    """Seconds to the first token."""
    gaps_s: list[float]
    """Seconds between its events."""
    took_s: float


def measure(options: Mapping[str, object]) -> Measured:
    """Options: `base` (the server's URL, with or without /v1), `scale` (how much work, 1.0), `key`."""
    base = str(options.get("base") or "http://127.0.0.1:8000").rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {options['key']}"} if options.get("key") else {}
    return asyncio.run(_measure(HttpClient(base, headers=headers), float(str(options.get("scale", 1.0)))))


async def _measure(http: HttpClient, scale: float) -> Measured:
    scenes: dict[str, Callable[[HttpClient, float], Awaitable[dict[str, float]]]] = {
        "shared_prefix": _shared_prefix,
        "turns": _turns,
        "fork": _fork,
        "json": _json,
        "mixed": _mixed,
    }
    figures: dict[str, float] = {}
    try:
        for name, scene in scenes.items():
            began = time.perf_counter()
            found = await scene(http, scale)
            figures |= {f"{name}_{figure}": value for figure, value in found.items()}
            figures[f"{name}_s"] = time.perf_counter() - began
    finally:
        http.close()
        await asyncio.sleep(0)
    return Measured(figures=figures)


async def _shared_prefix(http: HttpClient, scale: float) -> dict[str, float]:
    """Many users, one system prompt."""
    system = {"role": "system", "content": _words(0, 600)}
    users = [{"role": "user", "content": f"Case {i}: {_words(i, 12)}"} for i in range(round(24 * scale))]
    return _summary(await asyncio.gather(*(_ask(http, [system, user], 24) for user in users)))


async def _turns(http: HttpClient, scale: float) -> dict[str, float]:
    """Conversations that grow by their own answers."""

    async def conversation(index: int) -> list[Answer]:
        messages: list[dict[str, Any]] = [{"role": "system", "content": _words(1, 300)}]
        answers = []
        for turn in range(5):
            messages.append(
                {"role": "user", "content": f"Step {turn} of case {index}: {_words(100 * index + turn, 30)}"}
            )
            answers.append(await _ask(http, messages, 32))
            messages.append({"role": "assistant", "content": answers[-1].text})
        return answers

    nested = await asyncio.gather(*(conversation(index) for index in range(round(8 * scale))))
    return _summary([answer for answers in nested for answer in answers])


async def _fork(http: HttpClient, scale: float) -> dict[str, float]:
    """One prompt, eight ways."""
    prompts = [[{"role": "user", "content": _words(index, 400)}] for index in range(max(1, round(3 * scale)))]
    answers = [await _whole(http, messages, n=8, max_tokens=32, temperature=0.8) for messages in prompts]
    for answer in answers:
        if len(answer["choices"]) != 8:
            raise NotCorrect(f"expected 8 choices, got {len(answer['choices'])}")
    num_output = sum(answer["usage"]["completion_tokens"] for answer in answers)
    return {"output_tokens": float(num_output)}


async def _json(http: HttpClient, scale: float) -> dict[str, float]:
    """Answers that must obey a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA, "strict": True}}
    asked = [
        _whole(http, [{"role": "user", "content": f"Describe person {i}."}], max_tokens=120, response_format=form)
        for i in range(round(16 * scale))
    ]
    for answer in await asyncio.gather(*asked):
        text = answer["choices"][0]["message"]["content"]
        try:
            found = json.loads(text)
        except ValueError:
            raise NotCorrect(f"expected JSON, got {text!r}") from None
        if set(found) != {"name", "age", "mood"}:
            raise NotCorrect(f"expected the schema's keys, got {text!r}")
    return {"requests": float(len(asked))}


async def _mixed(http: HttpClient, scale: float) -> dict[str, float]:
    """Short chats stream; a long prompt comes in."""
    chats = [
        asyncio.create_task(
            _ask(http, [{"role": "user", "content": f"Tell tale {i}."}], round(96 * scale), ignore_eos=True)
        )
        for i in range(4)
    ]
    await asyncio.sleep(0.3)
    nonce = random.SystemRandom().getrandbits(32)  # a prompt that no cache has seen
    long = await _ask(http, [{"role": "user", "content": f"{nonce} {_words(nonce, round(2500 * scale))}"}], 8)
    gaps = sorted(gap for chat in await asyncio.gather(*chats) for gap in chat.gaps_s)
    return {
        "gap_p50_ms": statistics.median(gaps) * 1e3,
        "gap_max_ms": gaps[-1] * 1e3,
        "long_ttft_ms": long.first_s * 1e3,
    }


def _summary(answers: list[Answer]) -> dict[str, float]:
    took = sorted(answer.took_s for answer in answers)
    num_prompt = sum(answer.num_prompt for answer in answers)
    return {
        "ttft_p50_ms": statistics.median(answer.first_s for answer in answers) * 1e3,
        "answer_p50_s": statistics.median(took),
        "answer_p95_s": took[int(0.95 * (len(took) - 1))],
        "output_tokens": float(sum(answer.num_output for answer in answers)),
        "cached_share": sum(answer.num_cached for answer in answers) / max(num_prompt, 1),
    }


async def _ask(http: HttpClient, messages: list[dict[str, Any]], max_tokens: int, **more: Any) -> Answer:
    """One streamed answer, timed."""
    body = {
        "model": "default",
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    began = time.perf_counter()
    text, reason = "", None
    times: list[float] = []
    usage: dict[str, Any] = {}
    async for data in http.events("/v1/chat/completions", json.dumps(body).encode()):
        if data == b"[DONE]":
            break
        chunk = json.loads(data)
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            piece, reason = choice["delta"].get("content"), choice["finish_reason"] or reason
            if piece or reason:
                text += piece or ""
                times.append(time.perf_counter())
    if reason is None:
        raise NotCorrect("a stream ended without a finish_reason")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        text=text,
        num_prompt=usage.get("prompt_tokens", 0),
        num_cached=details.get("cached_tokens") or 0,
        num_output=usage.get("completion_tokens", 0),
        first_s=times[0] - began,
        gaps_s=[later - sooner for sooner, later in pairwise(times)],
        took_s=times[-1] - began,
    )


async def _whole(http: HttpClient, messages: list[dict[str, Any]], **more: Any) -> Any:
    body = json.dumps({"model": "default", "messages": messages, **more}).encode()
    response = await http.request("POST", "/v1/chat/completions", body)
    if response.status != 200:
        raise NotCorrect(f"the server answered {response.status}: {response.body[:300]!r}")
    return json.loads(response.body)


def _words(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=count))
