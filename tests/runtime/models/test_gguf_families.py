"""A GGUF file of each family, written as llama.cpp's converter writes it, reads as transformers reads it."""

import contextlib
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from ramet.runtime.errors import ModelError
from ramet.runtime.models.base import QuantizedTensor
from ramet.runtime.models.registry import build_model
from ramet.runtime.weights.ggml import GGML_TYPES, dequantize
from ramet.runtime.weights.gguf_source import GgufSource
from ramet.runtime.weights.source import open_source

LAYERS, D_MODEL, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2, 256, 256, 8, 4, 32, 300


def write_gguf(path: Path, architecture: str, *, extra: Mapping[str, Any] = {}) -> Path:
    """Random weights in many types; byte-level vocabulary of single letters."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(D_MODEL)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    for key, value in extra.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"{architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*(chr(0x100 + i) for i in range(VOCAB - 1)), "\u0101\u0102"])
    writer.add_token_merges(["\u0101 \u0102"])
    for name, shape, kind in tensors_of(architecture):
        add_tensor(writer, name, shape, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(architecture: str) -> list[tuple[str, tuple[int, ...], str]]:
    kinds = {"q": "Q4_1", "k": "Q8_0", "v": "Q5_0", "o": "Q4_0", "gate": "Q5_1", "up": "F16", "down": "BF16"}
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    found: list[tuple[str, tuple[int, ...], str]] = [
        ("token_embd.weight", (VOCAB, D_MODEL), "Q8_0"),
        ("output_norm.weight", (D_MODEL,), "F32"),
    ]
    if architecture != "gemma3":
        found.append(("output.weight", (VOCAB, D_MODEL), "F32"))
    for layer in range(LAYERS):
        shapes = {
            "attn_q": ((queries, D_MODEL), kinds["q"]), "attn_k": ((keys, D_MODEL), kinds["k"]),
            "attn_v": ((keys, D_MODEL), kinds["v"]), "attn_output": ((D_MODEL, queries), kinds["o"]),
            "ffn_gate": ((FFN, D_MODEL), kinds["gate"]), "ffn_up": ((FFN, D_MODEL), kinds["up"]),
            "ffn_down": ((D_MODEL, FFN), kinds["down"]),
            "attn_norm": ((D_MODEL,), "F32"), "ffn_norm": ((D_MODEL,), "F32"),
        }  # fmt: skip
        if architecture in ("qwen3", "gemma3"):
            shapes |= {"attn_q_norm": ((HEAD_DIM,), "F32"), "attn_k_norm": ((HEAD_DIM,), "F32")}
        if architecture == "gemma3":
            shapes |= {"post_attention_norm": ((D_MODEL,), "F32"), "post_ffw_norm": ((D_MODEL,), "F32")}
        found += [(f"blk.{layer}.{name}.weight", *what) for name, what in shapes.items()]
        if architecture == "qwen2":
            found += [
                (f"blk.{layer}.attn_{x}.bias", (n,), "F32") for x, n in (("q", queries), ("k", keys), ("v", keys))
            ]
    return found


def add_tensor(writer: Any, name: str, shape: tuple[int, ...], kind: str) -> None:
    rng = np.random.default_rng(sum(map(ord, name)))
    numbers = rng.normal(scale=0.15, size=shape).astype(np.float32) + (1.0 if "norm" in name else 0.0)
    code = gguf.GGMLQuantizationType[kind]
    if kind == "F32":
        writer.add_tensor(name, numbers.astype(np.float32))
    elif kind == "F16":
        writer.add_tensor(name, numbers.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(numbers.astype(np.float32), code), raw_dtype=code)


@pytest.fixture(params=["llama", "qwen2", "qwen3", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    extra = {"attention.sliding_window": 8} if request.param == "gemma3" else {}
    return write_gguf(tmp_path / f"{request.param}.gguf", request.param, extra=extra)


@pytest.mark.filterwarnings("ignore")
def test_forward_equals_transformers(path: Path, greedy: Any, from_gguf: Callable[..., Any]) -> None:
    source = open_source(path)
    model = build_model(source.config, source, dtype=torch.float32)
    prompts = [[5, 9, 200], list(range(30, 60))]
    outputs, ours = greedy(model, prompts, 12)
    theirs = from_gguf(path, head_dim=HEAD_DIM, query_pre_attn_scalar=HEAD_DIM)
    for prompt, output, logits in zip(prompts, outputs, ours, strict=True):
        with torch.no_grad():
            expected = theirs(torch.tensor([[*prompt, *output[:-1]]])).logits[0]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_raw_blocks_stand_for_the_same_numbers(path: Path) -> None:
    source = GgufSource(path)
    by_name = {kind.name: kind for kind in GGML_TYPES.values()}
    quantised = 0
    for name in source.names():
        raw, numbers = source.read_raw(name), source.read(name)
        if isinstance(raw, QuantizedTensor):
            assert raw.shape == numbers.shape and raw.blocks.is_contiguous() and raw.blocks.dtype == torch.uint8
            out = torch.empty(raw.shape)
            dequantize(raw.blocks, by_name[raw.type], out)
            raw, quantised = out, quantised + 1
        assert torch.equal(raw.float(), numbers)
    assert quantised > 5


def test_flipped_bytes_are_survived_or_told(path: Path) -> None:
    """Damage to the header and metadata: an error that names the file's fault, or a model; never anything else."""
    whole, rng = path.read_bytes(), random.Random(1)
    header = whole.find(b"blk.1.attn_v.weight") + 60
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 1, 3])):
            damaged[rng.randrange(header)] = rng.choice([0, 1, 255, rng.randrange(256)])
        path.write_bytes(damaged)
        with contextlib.suppress(ModelError):
            source = open_source(path)
            source.tokenizer()
            build_model(source.config, source, dtype=torch.float32, num_positions=64)


def test_bfloat16_is_the_rounded_float32(path: Path) -> None:
    source = GgufSource(path)
    for name in source.names():
        low, full = source.read(name, torch.bfloat16), source.read(name)
        assert torch.equal(low, full.bfloat16())
        assert low.is_contiguous() and source.num_bytes(name) > 0


@pytest.mark.filterwarnings("ignore")
def test_rope_divisors_of_llama3_files_are_used(tmp_path: Path) -> None:
    """GGUF has no "llama3" rope type: it stores, per frequency, what to divide by."""
    path = write_gguf(tmp_path / "plain.gguf", "llama")
    source = GgufSource(path)
    assert source.config.rope.divisors == ()
    divisors = np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32)
    writer = gguf.GGUFWriter(tmp_path / "with.gguf", "llama")
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if key.startswith("llama.") and field.types[0] == gguf.GGUFValueType.UINT32:
            writer.add_uint32(key, field.contents())
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = GgufSource(tmp_path / "with.gguf").config
    assert config.rope.divisors == pytest.approx(divisors.tolist())
    from ramet.runtime.models.rope import rope_frequencies

    plain, _ = rope_frequencies(source.config.rope, HEAD_DIM, 64)
    divided, _ = rope_frequencies(config.rope.__class__(theta=5000.0, divisors=config.rope.divisors), HEAD_DIM, 64)
    torch.testing.assert_close(divided, plain / torch.from_numpy(divisors))
