"""Grammars on the device of the logits give the very tokens that masks from the host give, and no mask is sent."""

import asyncio
import json
import random
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.constrained.compile import compile
from ramet.constrained.spec import Choice, JsonSchema, Lark, Literal_, Regex, Repeat, Spec, Tagged, Text
from ramet.constrained.spec import Sequence as InOrder
from ramet.constrained.vocabulary import Vocabulary
from ramet.kernels.registry import use_backends
from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.clock import SystemClock
from ramet.runtime.config import AdmissionConfig, CacheConfig, EngineConfig, PaceConfig
from ramet.runtime.engine import Engine
from ramet.runtime.execution.arena_space import ArenaSpace
from ramet.runtime.execution.device_masks import DeviceMaskConfig, DeviceMasks, slot_of
from ramet.runtime.execution.grammar import GrammarWalk
from ramet.runtime.execution.local import LocalExecutor
from ramet.runtime.local_client import LocalClient
from ramet.runtime.models.batch import KVPool, StepBatch
from ramet.runtime.scheduler.build import build_scheduler
from ramet.runtime.types import Delta, Event, GenerateSpec, ModelCard, ProgramSpec, Sampling, TextPiece
from ramet.testing import ByteTokenizer

CODEC = ByteTokenizer()
V, PAGE = CODEC.vocabulary_size, 8
SMALL = DeviceMaskConfig(num_slots=16, num_ahead=64, depth=12, arena_bytes=4 << 20, num_rows=256)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "ab"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SPECS: list[Spec] = [
    JsonSchema(schema=json.dumps(PERSON), whitespace="compact"),
    JsonSchema(schema=json.dumps(PERSON), any_order=True),
    JsonSchema(schema='{"type":"object","additionalProperties":{"type":"boolean"},"maxProperties":2}'),
    Regex(pattern="(ab|a)*b{2,9}c?"),
    Choice(choices=("red", "real", "re")),
    InOrder(
        items=(
            Text(until=("<",)),
            Literal_(text="<"),
            Tagged(name="name", item=Choice(choices=("add", "sub"))),
            Repeat(item=Regex(pattern="[0-9]"), minimum=2, maximum=3, separator=","),
        )
    ),
]


class HashModel:
    """Logits are a hash of the tokens seen, read back from the pool: a wrong page or token changes them."""

    def forward(self, batch: StepBatch, kv: KVPool) -> Tensor:
        pool = kv.keys[0].view(-1)
        pool[batch.slots] = batch.tokens.float()
        found = torch.zeros(len(batch.output_rows), V)
        for i, token in enumerate(batch.output_rows.tolist()):
            row = int((batch.query_offsets <= token).sum()) - 1
            last = int(batch.context_lengths[row]) - (int(batch.query_offsets[row + 1]) - token)
            seen = [int(kv.keys[0][batch.page_tables[row, p // PAGE], p % PAGE, 0, 0]) for p in range(last + 1)]
            generator = random.Random(zlib.crc32(repr(seen).encode()))
            found[i] = torch.tensor([generator.gauss(0, 2) for _ in range(V)])
        return found


def client_with(device_masks: DeviceMaskConfig | bool, num_pages: int = 512) -> tuple[LocalClient, LocalExecutor]:
    config = EngineConfig(
        admission=AdmissionConfig(high_water=3.0), cache=CacheConfig(page_size=PAGE), pace=PaceConfig(max_stall_s=None)
    )
    scheduler = build_scheduler(num_pages, SystemClock(), config)
    shape = (scheduler.cache.allocator.pool_pages, PAGE, 1, 1)
    pool = KVPool(keys=[torch.zeros(shape)], values=[torch.zeros(shape)])
    vocabulary = Vocabulary.from_tokenizer(CODEC)

    def compiled(spec: Spec) -> Any:
        return compile(spec, vocabulary)

    executor = LocalExecutor(
        HashModel(),  # type: ignore[arg-type]
        pool,
        vocabulary_size=V,
        end_ids=CODEC.end_ids,
        compile_grammar=compiled,
        seed=3,
        device_masks=device_masks,
    )
    card = ModelCard(
        name="hash",
        model_type="hash",
        context_length=2000,
        vocabulary_size=V,
        end_token_ids=CODEC.end_ids,
        bos_token_id=CODEC.bos_id,
        chat_template=CODEC.chat_template,
        num_pages=num_pages,
        page_size=PAGE,
    )
    template = ChatTemplate(CODEC.chat_template, eos_token=CODEC.special_text(CODEC.eos_id))
    return LocalClient(Engine(scheduler, executor), CODEC, card, template, compiled), executor


@pytest.fixture(params=["reference", "triton"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The plain twins, and the kernels under the interpreter."""
    name = str(request.param)
    with use_backends(grammar_step=name, grammar_mask=name, apply_token_mask=name):
        yield name


def spec_of(grammar: Spec, seed: int, **more: Any) -> GenerateSpec:
    return GenerateSpec(grammar=grammar, max_tokens=24, sampling=Sampling(temperature=1.0, seed=seed), **more)


async def tokens_of(client: LocalClient, branch: Any, spec: GenerateSpec) -> list[int]:
    events: list[Event] = [event async for event in client.generate(branch, spec)]
    return [token for event in events if isinstance(event, Delta) for token in event.tokens]


async def conversation(client: LocalClient, grammar: Spec, seed: int, **more: Any) -> list[list[int]]:
    """A turn, a fork of it, the same turn's rollback and another, side by side with the fork's own."""
    branch = await client.open(ProgramSpec())
    await client.extend(branch, [TextPiece(f"{seed}: ")])
    mark = await client.mark(branch)
    found = [await tokens_of(client, branch, spec_of(grammar, seed, **more))]
    (fork,) = await client.fork(branch, 1)
    await client.rollback(branch, mark)
    await client.extend(fork, [TextPiece(" more ")])
    found += await asyncio.gather(
        tokens_of(client, branch, spec_of(grammar, seed + 100, **more)),
        tokens_of(client, fork, spec_of(grammar, seed + 200, **more)),
    )
    return found


async def all_tokens(config: DeviceMaskConfig | bool, num_pages: int = 512) -> tuple[list[Any], LocalExecutor]:
    client, executor = client_with(config, num_pages)
    async with client:
        found = await asyncio.gather(*(conversation(client, grammar, i) for i, grammar in enumerate(SPECS)))
        branch = await client.open(ProgramSpec())  # a step more, with which the executor hears of the last ends
        await client.extend(branch, [TextPiece("x")])
        await tokens_of(client, branch, GenerateSpec(max_tokens=2))
    return list(found), executor


@pytest.fixture(scope="module")
def from_the_host() -> list[Any]:
    return asyncio.run(all_tokens(False))[0]


async def test_tokens_are_those_of_the_host(backend: str, from_the_host: list[Any]) -> None:
    found, executor = await all_tokens(SMALL)
    assert found == from_the_host
    masks = executor.device_masks
    assert masks is not None and not +masks.host_rows
    assert executor.num_device_masks > 200 and executor.num_host_masks == 0
    assert len(masks._free) == SMALL.num_slots and masks._space.is_idle, "what ended left"


async def test_a_sequence_that_was_preempted_is_written_again(from_the_host: list[Any]) -> None:
    client, _ = client_with(SMALL, num_pages=17)
    async with client:
        found = await asyncio.gather(*(conversation(client, grammar, i) for i, grammar in enumerate(SPECS)))
        statistics = await client.statistics()
    assert statistics.preemptions_total > 0
    assert list(found) == from_the_host


async def test_drafts_are_followed_on_the_device(backend: str) -> None:
    """Forced keys come as drafts: their masks are made ahead, and the slot goes where the last accepted one leads."""
    texts = []
    for config in (False, SMALL):
        client, _ = client_with(config)
        async with client:
            branch = await client.open(ProgramSpec())
            await client.extend(branch, [TextPiece("go: ")])
            texts.append(await tokens_of(client, branch, spec_of(SPECS[0], 5)))
            assert (await client.statistics()).accepted_tokens_total > 0
    assert texts[0] == texts[1]


async def test_what_the_device_can_not_hold_is_the_hosts_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    lark = Lark(grammar='start: "a" start "b" | "c"')
    nested: Spec = JsonSchema(schema='{"type":"array","items":{"$ref":"#"},"maxItems":1}')
    flat = DeviceMaskConfig(num_slots=2, num_ahead=4, depth=1, arena_bytes=1 << 20, num_rows=64)
    outcomes = []
    for config in (False, flat):
        client, executor = client_with(config)
        async with client:
            branch = await client.open(ProgramSpec())
            await client.extend(branch, [TextPiece("go: ")])
            found = [await tokens_of(client, branch, spec_of(grammar, 1)) for grammar in (lark, nested)]
            limited = spec_of(SPECS[0], 2, min_tokens=20)
            found.append(await tokens_of(client, branch, limited))
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]
    masks = executor.device_masks
    assert masks is not None
    assert len(+masks.host_rows) >= 2 and set(masks.host_rows) >= {"the grammar has no tables for the device"}


def test_slots_are_where_the_host_is() -> None:
    """Word for word, along a walk; and a grammar that is gone gives way to another."""
    vocabulary = Vocabulary.from_tokenizer(CODEC)
    masks = DeviceMasks(torch.device("cpu"), V, SMALL)
    for grammar in (compile(spec, vocabulary) for spec in SPECS[:4]):
        walk = GrammarWalk(grammar, V)
        slot = masks.enter(walk)
        assert slot is not None and not slot.is_parked
        choose = random.Random(1)
        for _ in range(10):
            step = masks.new_step()
            (number,) = step.add(slot, walk, [], 0) or [-1]
            allowed = vocabulary.unpack(masks.masks[number].numpy()).tolist()
            assert allowed == vocabulary.unpack(walk.masks([])[0]).tolist()
            token = choose.choice(allowed)
            step.run()
            step.commit(torch.tensor([token]))
            walk.advance([token])
            expected = slot_of(walk.state, walk.state, slot.tables, SMALL)  # type: ignore[arg-type]
            if expected is not None and walk.state.configurations:  # type: ignore[attr-defined]
                there = masks.slots[slot.number].tolist()
                width = (len(expected) - 2) // expected[0]
                for k in range(expected[0]):
                    at = 2 + k * width
                    used = at + 3 + 2 * expected[at + 2]
                    assert there[at:used] in [expected[2 + j * width :][: used - at] for j in range(expected[0])]
        masks.leave(slot)


def test_addresses_never_change() -> None:
    """So that a captured step reads what the next sequences put there."""
    vocabulary = Vocabulary.from_tokenizer(CODEC)
    masks = DeviceMasks(torch.device("cpu"), V, SMALL)
    seen = set()
    for spec in SPECS:
        slot = masks.enter(GrammarWalk(compile(spec, vocabulary), V))
        names = ("arena", "rows", "slots", "masks", "bases", "tokens", "offsets", "data")
        seen.add(tuple(getattr(masks, name).data_ptr() for name in names))
        assert slot is not None
        masks.leave(slot)
    assert len(seen) == 1


def test_the_arena_evicts_what_nobody_uses_and_moves_nothing() -> None:
    space = ArenaSpace(100)
    assert space.take("a", 60) == (0, True) and space.take("a", 60) == (0, False)
    assert space.take("b", 30) == (60, True)
    assert space.take("c", 20) is None
    space.release("b")
    assert space.take("c", 50) is None and space.take("b", 30) == (60, False), "nothing is evicted in vain"
    space.release("b")
    assert space.take("c", 40) == (60, True)
    space.release("a")
    space.release("a")
    assert space.take("d", 60) == (0, True) and not space.is_idle
