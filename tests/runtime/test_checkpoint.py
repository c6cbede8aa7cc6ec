"""A program that is saved, and restored on another engine, goes on as if nothing had been; over the scripted model."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ramet.constrained.spec import Regex
from ramet.runtime.checkpoint import SavedProgram
from ramet.runtime.errors import BadRequest, NotFound
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    Event,
    Failed,
    Finished,
    GenerateSpec,
    Message,
    MessagesPiece,
    ProgramSpec,
    Sampling,
    TextPiece,
)
from ramet.testing import scripted_client

SPECS = [
    GenerateSpec(max_tokens=40, sampling=Sampling(temperature=0), ignore_eos=True),
    GenerateSpec(max_tokens=40, sampling=Sampling(temperature=0.9, seed=3), ignore_eos=True),
    GenerateSpec(
        max_tokens=40,
        sampling=Sampling(temperature=0.9, seed=4, repetition_penalty=1.3, presence_penalty=0.5),
        grammar=Regex(pattern="[a-f]{4}-[0-9]{30,34}"),
    ),
    GenerateSpec(max_tokens=40, sampling=Sampling(temperature=0.9, seed=5), logprobs=1, ignore_eos=True),
]


class Slowed:
    """Around an executor: a step takes a while, so that a turn is met while it runs."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def execute(self, plan: Any) -> Any:
        time.sleep(0.005)
        return self._inner.execute(plan)


def through_bytes(saved: SavedProgram) -> SavedProgram:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(saved), type=SavedProgram)


async def collect(events: Any) -> tuple[list[int], str, Finished]:
    """What a generation gave."""
    seen: list[Event] = [event async for event in events]
    assert not isinstance(seen[-1], Failed), seen[-1]
    deltas = [event for event in seen if isinstance(event, Delta)]
    assert isinstance(seen[-1], Finished)
    return [t for each in deltas for t in each.tokens], "".join(each.text for each in deltas), seen[-1]


async def begin(client: Any, text: str = "What was said before.") -> BranchHandle:
    branch = await client.open(ProgramSpec(program_id="p", salt="s"))
    await client.extend(branch, [TextPiece(text)])
    return branch


@pytest.mark.parametrize("spec", SPECS, ids=["greedy", "seeded", "grammar and penalties", "logprobs"])
@pytest.mark.parametrize("num_before", [0, 1, 7, 33])
async def test_a_turn_that_ran_goes_on_with_the_same_tokens(spec: GenerateSpec, num_before: int) -> None:
    async with scripted_client(wrap=Slowed) as first:
        branch = await begin(first)
        (twin,) = await first.fork(branch, 1)
        whole = await collect(first.generate(twin, spec))
        after_whole = await first.tokens(twin)
        await first.close(twin)
        events = first.generate(branch, spec)
        num_seen = 0
        async for event in events:
            num_seen += len(event.tokens) if isinstance(event, Delta) else 0
            if num_seen >= num_before:
                break
        saved = through_bytes(await first.checkpoint("p"))
        await events.aclose()
    assert saved.branches[0].turn is not None and len(saved.branches[0].tokens) // 4 >= num_before
    async with scripted_client() as second:
        (again,) = await second.restore(saved)
        assert again == branch
        tokens, text, finished = await collect(second.resume(again))
        assert (tokens, text, finished.reason) == (whole[0], whole[1], whole[2].reason)
        assert finished.usage.completion_tokens == whole[2].usage.completion_tokens
        assert await second.tokens(again) == after_whole
        await second.close(again, program=True)


async def test_a_turn_begun_is_ended_before_anything_else_and_saved_again_as_it_was() -> None:
    async with scripted_client(wrap=Slowed) as first:
        branch = await begin(first)
        events = first.generate(branch, SPECS[0])
        async for _ in events:
            break
        saved = await first.checkpoint("p")
        await events.aclose()
    async with scripted_client() as second:
        (again,) = await second.restore(saved)
        for verb in (second.extend(again, [TextPiece("x")]), second.fork(again, 2), second.mark(again)):
            with pytest.raises(BadRequest, match="resume"):
                await verb
        assert (await second.checkpoint("p")).branches == saved.branches
        await collect(second.resume(again))
        with pytest.raises(BadRequest, match="middle of a generation"):
            await collect(second.resume(again))


async def test_chat_marks_forks_text_and_ids_come_back() -> None:
    async def talk(client: Any, branches: Sequence[BranchHandle], mark: Any) -> list[Any]:
        """What must be the same on both engines."""
        left, right = branches
        said: list[Any] = [await client.text(left), await client.text(right)]
        await client.extend(left, [MessagesPiece(messages=[Message(role="user", content="And?")])])
        await client.extend(left, [MessagesPiece(messages=[], add_generation_prompt=True)])
        said.append(await collect(client.generate(left, SPECS[1])))
        await client.rollback(right, mark)
        said.append(await client.text(right))
        await client.extend(right, [TextPiece(" more")])
        said += [await client.tokens(left), await client.tokens(right), await client.fork(left, 2)]
        usage = [(await client.close(each)).completion_tokens for each in branches]
        return [*said, usage]

    hello = MessagesPiece(messages=[Message(role="user", content="Hello <|im_end|>")], add_generation_prompt=True)
    async with scripted_client() as first, scripted_client() as second:
        branch = await first.open(ProgramSpec(program_id="p"))
        await first.extend(branch, [hello])
        await collect(first.generate(branch, SPECS[0]))
        mark = await first.mark(branch)
        (other,) = await first.fork(branch, 1)
        await first.extend(other, [TextPiece("waiting te"), TextPiece("xt")])
        saved = through_bytes(await first.checkpoint("p"))
        before = await talk(first, [branch, other], mark)
        restored = await second.restore(saved)
        after = await talk(second, restored, mark)
    for one, two in zip(before, after, strict=True):
        if isinstance(one, tuple):
            assert one[:2] == two[:2]
        else:
            assert one == two


async def test_an_open_gap_stays_open() -> None:
    async with scripted_client() as first:
        branch = await begin(first)
        await first.gap(branch, "tool", "search", 3.0)
        await asyncio.sleep(0.02)
        saved = await first.checkpoint("p")
    gap = saved.branches[0].gap
    assert gap is not None and (gap.kind, gap.tool, gap.expected_s) == ("tool", "search", 3.0) and gap.elapsed_s > 0.01
    async with scripted_client() as second:
        await second.restore(saved)
        again = (await second.checkpoint("p")).branches[0].gap
        assert again is not None and again.elapsed_s >= gap.elapsed_s


async def test_another_model_an_open_program_and_an_unknown_one_are_refused() -> None:
    async with scripted_client() as client:
        await begin(client)
        saved = await client.checkpoint("p")
        with pytest.raises(BadRequest, match="open on this engine already"):
            await client.restore(saved)
        other = msgspec.structs.replace(saved, model=msgspec.structs.replace(saved.model, fingerprint="f00d"))
        with pytest.raises(BadRequest, match="fingerprint f00d"):
            await client.restore(other)
        with pytest.raises(NotFound):
            await client.checkpoint("q")
