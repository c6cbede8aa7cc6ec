"""The device's step against the grammar itself: every mask of a walk, bit for bit, on both backends."""

import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.constrained.compile import compile
from ramet.constrained.grammar import CompiledGrammar
from ramet.constrained.spec import Choice, JsonSchema, Literal_, Regex, Repeat, Sequence, Spec, Tagged, Text
from ramet.constrained.tables import arena as layout
from ramet.constrained.tables.arena import token_table
from ramet.constrained.vocabulary import Vocabulary
from ramet.kernels import grammar_mask as ops

TEXTS = 'true false null name age yes no ": ", "} {" "name ]] [1 1, "}} ab aab'
WORDS = [text.encode() for text in TEXTS.split()]
TOKENS = [bytes([b]) for b in range(256)] + WORDS + [b"<call>", b"<end>", b"<stop>"]
SPECIAL = {text: 256 + len(WORDS) + i for i, text in enumerate(("<call>", "<end>", "<stop>"))}
ENDS = [SPECIAL["<end>"], SPECIAL["<stop>"]]
VOCABULARY = Vocabulary(TOKENS, special=SPECIAL, end_ids=ENDS, size=len(TOKENS) + 40)
DEPTH, K = 8, 4
BACKENDS = ["reference", "triton"]

NESTED = """{"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":3},
 "next":{"$ref":"#"},"age":{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3}},
 "required":["name"],"additionalProperties":false}"""
SPECS: list[Spec] = [
    Regex(pattern="(ab|a)*b{2,300}"),
    Choice(choices=("yes", "no", "name", "nam")),
    JsonSchema(schema=NESTED),
    JsonSchema(schema='{"type":"object","additionalProperties":{"type":"boolean"}}'),
    JsonSchema(
        schema='{"anyOf":[{"type":"array","items":{"type":"null"}},{"type":"array","items":{"type":"string"}}]}'
    ),
    Repeat(item=Tagged(name="t", item=Regex(pattern="a+|aab")), minimum=2, maximum=4, separator=","),
    Sequence(items=(Text(until=("ab",)), Literal_(text="<call>", special=True), Literal_(text="ab"))),
]


class Device:
    """The tensors of one batch."""

    def __init__(self, grammars: list[CompiledGrammar | None], device: str) -> None:
        pieces, bases, used = [], [], 0
        for grammar in grammars:
            if grammar is None:
                bases.append(-1)
                continue
            tables = grammar.tables
            assert tables is not None
            bases.append(used)
            pieces.append(tables.arena)
            used += len(tables.arena)
            self.rows = torch.from_numpy(tables.store.rows.copy()).to(device)
        offsets, data = token_table(VOCABULARY)
        self.arena = torch.from_numpy(np.concatenate(pieces)).to(device)
        self.bases = torch.tensor(bases, dtype=torch.int32, device=device)
        self.offsets, self.data = torch.from_numpy(offsets).to(device), torch.from_numpy(data.copy()).to(device)
        self.slots = ops.new_slots(len(grammars), K, DEPTH, device)
        self.device = device

    def advance(self, tokens: list[int], backend: str) -> None:
        sampled = torch.tensor(tokens, dtype=torch.int32, device=self.device)
        tables = (self.arena, self.offsets, self.data)
        ops.grammar_advance.on(backend)(self.slots, self.bases, sampled, *tables, depth=DEPTH)

    def mask(self, backend: str) -> Tensor:
        out = torch.full((len(self.slots), VOCABULARY.num_words), -1, dtype=torch.int32, device=self.device)
        options: dict[str, Any] = {"block": 4} if backend == "triton" else {}  # several blocks, the last one ragged
        ops.grammar_mask.on(backend)(self.slots, self.bases, self.arena, self.rows, out, depth=DEPTH, **options)
        return out.cpu()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", range(len(SPECS)))
def test_masks_of_random_walks(number: int, backend: str, device: str) -> None:
    grammar = compile(SPECS[number], VOCABULARY)
    states = [grammar.initial() for _ in range(2)]
    batch = Device([grammar, None, grammar], device)
    choose = random.Random(number)
    for _ in range(12 if backend == "triton" else 40):
        out = batch.mask(backend)
        assert (out[1] == -1).all(), "an unconstrained slot is left alone"
        tokens = [0, 0, 0]
        for slot, index in ((0, 0), (2, 1)):
            expected = np.zeros(VOCABULARY.num_words, dtype=np.int32)
            states[index].mask(expected)
            assert out[slot].numpy().tolist() == expected.tolist()
            tokens[slot] = choose.choice(VOCABULARY.unpack(expected).tolist())
        if any(len(state.configurations) > K or _height(state) >= DEPTH - 2 for state in states):
            return
        states = [state.advance(token) for state, token in zip(states, tokens[::2], strict=True)]
        batch.advance(tokens, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", range(len(SPECS)))
def test_one_launch_is_an_advance_and_a_mask(number: int, backend: str, device: str) -> None:
    """The slot that takes no token keeps its place and its mask."""
    grammar = compile(SPECS[number], VOCABULARY)
    state, batch, choose = grammar.initial(), Device([grammar, grammar], device), random.Random(number)
    out = batch.mask(backend).to(device)
    before, slot = out[1].tolist(), batch.slots[1].tolist()
    expected = np.zeros(VOCABULARY.num_words, dtype=np.int32)
    for _ in range(6):
        state.mask(expected)
        assert out[0].tolist() == expected.tolist()
        token = choose.choice(VOCABULARY.unpack(expected).tolist())
        state = state.advance(token)
        if len(state.configurations) > K or _height(state) >= DEPTH - 2:
            return
        tokens = torch.tensor([token, -1], dtype=torch.int32, device=device)
        tables = (batch.arena, batch.offsets, batch.data, batch.rows, out)
        options: dict[str, Any] = {"block": 4} if backend == "triton" else {}
        ops.grammar_step.on(backend)(batch.slots, batch.bases, tokens, *tables, depth=DEPTH, **options)
    assert out[1].tolist() == before and batch.slots[1].tolist() == slot


def _height(state: Any) -> int:
    heights = []
    for configuration in state.configurations:
        height, stack = 0, configuration.stack
        while stack is not None:
            height, stack = height + 1, stack[2]
        heights.append(height)
    return max(heights, default=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_forbidden_end_and_no_token(backend: str, device: str) -> None:
    grammar = compile(Choice(choices=("a", "ab")), VOCABULARY)
    batch = Device([grammar] * 4, device)
    batch.advance([ord("a"), ord("b"), -1, ENDS[0]], backend)
    assert batch.slots[:, 1].tolist() == [ops.LIVE, ops.DEAD, ops.LIVE, ops.DEAD]
    batch.advance([ENDS[1], -1, ord("a"), -1], backend)
    assert batch.slots[:, 1].tolist() == [ops.ENDED, ops.DEAD, ops.LIVE, ops.DEAD]
    out = batch.mask(backend)
    assert VOCABULARY.unpack(out[0].numpy()).tolist() == sorted(ENDS)
    assert not out[1].any() and not out[3].any()
    assert VOCABULARY.unpack(out[2].numpy()).tolist() == sorted([ord("b"), *ENDS])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_slot_says_so_and_keeps_its_place(backend: str, device: str) -> None:
    deep = '{"type":"array","items":{"$ref":"#"}}'
    grammar = compile(JsonSchema(schema=deep), VOCABULARY)
    batch = Device([grammar], device)
    for _ in range(DEPTH + 2):
        batch.advance([ord("[")], backend)
    assert batch.slots[0, 1] == ops.FULL and not batch.mask(backend).any()


def test_backends_leave_equal_slots(device: str) -> None:
    grammar = compile(SPECS[2], VOCABULARY)
    left, right = Device([grammar], device), Device([grammar], device)
    for token in b'{"name": "ab", "next": {"name"':
        left.advance([token], "reference")
        right.advance([token], "triton")
        num = int(left.slots[0, 0])
        used = ops.SLOT_HEAD + num * (ops.PLACE + 2 * DEPTH)
        assert left.slots[0, :2].tolist() == right.slots[0, :2].tolist()
        height = int(left.slots[0, ops.SLOT_HEAD + 2])
        assert left.slots[0, : ops.SLOT_HEAD + ops.PLACE + 2 * height].tolist() == (
            right.slots[0, : ops.SLOT_HEAD + ops.PLACE + 2 * height].tolist()
        )
        assert used <= left.slots.shape[1]


def test_both_sides_name_the_same_words() -> None:
    for name in ("NUM_CLASSES", "START", "CLASSES", "EDGES", "STATES", "ENDS", "NUM_ENDS", "FINALS"):
        assert getattr(ops, name) == getattr(layout, name)
    assert (ops.STATE_WORDS, ops.ANSWER_WORDS, ops.MOVE_WORDS) == (8, 6, 9)
    assert (layout.STATE_WORDS, layout.ANSWER_WORDS, layout.MOVE_WORDS) == (8, 6, 9)


COMPILES = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ramet.kernels import grammar_mask as ops

sizes = {"K": 4, "DEPTH": 64, "SLOT_BLOCK": 256, "BLOCK": 1024}
kinds = {n: "constexpr" if n in sizes else "*i32" if n.endswith("_ptr") else "i32" for n in ops._step_kernel.arg_names}
source = ASTSource(fn=ops._step_kernel, signature=kinds, constexprs=sizes)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
print(len(made.asm["cubin"]))
"""


def test_the_step_compiles_for_a_gpu_that_is_not_here() -> None:
    """What the interpreter does not ask: types that hold through loops and branches."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILES], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 1000
