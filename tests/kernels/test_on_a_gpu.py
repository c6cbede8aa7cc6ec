"""What only a GPU can show: kernels compile, agree with the reference at real sizes, and fit in a CUDA graph."""

import functools

import numpy as np
import pytest
import torch

from ramet.constrained.compile import compile
from ramet.constrained.spec import JsonSchema
from ramet.constrained.tables.arena import GrammarTables, token_table
from ramet.constrained.vocabulary import Vocabulary
from ramet.kernels import grammar_mask, kv_copy, kv_quantize, moe, penalties, rope, sample, speculative_verify  # noqa: F401
from ramet.kernels.attention import decode_attention
from ramet.kernels.quantized_linear import make_inputs as linear_inputs
from ramet.kernels.quantized_linear import quantized_linear
from ramet.kernels.registry import OPS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def _decode_step(R: int, length: int) -> dict[str, torch.Tensor]:
    H, G, D, S = 32, 8, 128, 16
    pages = -(-length // S)
    g = torch.Generator("cuda").manual_seed(0)
    pools = [torch.randn(R * pages, S, G, D, generator=g, device="cuda").bfloat16() for _ in range(2)]
    return dict(
        q=torch.randn(R, H, D, generator=g, device="cuda").bfloat16(),
        key_pages=pools[0],
        value_pages=pools[1],
        context_lengths=torch.full((R,), length, dtype=torch.int32, device="cuda"),
        page_tables=torch.randperm(R * pages, device="cuda").int().view(R, pages),
    )


def test_decode_equals_reference_at_real_sizes() -> None:
    step = _decode_step(4, 3001)
    ours, theirs = (decode_attention.on(backend)(**step, scale=0.09) for backend in ("triton", "reference"))
    torch.testing.assert_close(ours, theirs, atol=0.02, rtol=0.02)


def test_decode_replays_in_a_graph_with_new_lengths() -> None:
    step = _decode_step(4, 1000)
    decode_attention.on("triton")(**step, scale=0.09)  # compiles outside the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode_attention.on("triton")(**step, scale=0.09)
    step["context_lengths"].fill_(77)
    graph.replay()
    torch.testing.assert_close(out, decode_attention.on("reference")(**step, scale=0.09), atol=0.02, rtol=0.02)


def test_four_bit_product_at_real_sizes() -> None:
    inputs = linear_inputs(16, 4096, 4096, 4, 32, torch.bfloat16, "cuda")
    ours, theirs = (quantized_linear.on(backend)(**inputs) for backend in ("triton", "reference"))
    torch.testing.assert_close(ours, theirs, atol=1.0, rtol=0.05)


def test_every_op_has_a_gpu_form() -> None:
    without = [name for name, op in OPS.items() if "triton" not in op.backends]
    assert without == []


def test_a_grammar_walks_in_a_graph() -> None:
    """One captured launch, replayed token by token: its masks are the host's, and another grammar can be put there."""
    vocabulary = Vocabulary([bytes([b]) for b in range(256)] + [b"<end>"], special={"<end>": 256}, end_ids=[256])
    offsets, data = (torch.from_numpy(part.copy()).cuda() for part in token_table(vocabulary))
    arena, rows = (torch.zeros(shape, dtype=torch.int32, device="cuda") for shape in ((1 << 18,), (64, 9)))
    slots, bases = grammar_mask.new_slots(2, 4, 64, "cuda"), torch.tensor([0, -1], dtype=torch.int32, device="cuda")
    tokens, out = torch.full((2,), -1, dtype=torch.int32, device="cuda"), torch.zeros(2, 9, dtype=torch.int32).cuda()
    step = functools.partial(
        grammar_mask.grammar_step.on("triton"), slots, bases, tokens, arena, offsets, data, rows, out, depth=64
    )
    step()  # compiles outside the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for schema in ('{"type": "array", "items": {"type": "integer"}, "maxItems": 3}', '{"enum": ["red", "real"]}'):
        grammar = compile(JsonSchema(schema=schema, whitespace="compact"), vocabulary)
        tables = grammar.tables
        assert isinstance(tables, GrammarTables)
        arena[: len(tables.arena)] = torch.from_numpy(tables.arena).cuda()
        rows[: len(tables.store.rows)] = torch.from_numpy(tables.store.rows).cuda()
        slots[0] = grammar_mask.new_slots(1, 4, 64, "cuda")[0]
        state, expected = grammar.initial(), np.zeros(9, dtype=np.int32)
        for byte in b"[12,-3]" if "array" in schema else b'"rea':
            tokens[0] = byte
            graph.replay()
            state = state.advance(byte)
            state.mask(expected)
            assert out[0].tolist() == expected.tolist()
