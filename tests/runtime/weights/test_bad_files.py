"""Torn, foreign and impossible model files: each a clear error that says what was expected and what came."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ramet.runtime.errors import ModelError, ModelNotFound, UnsupportedModel, WeightsCorrupt
from ramet.runtime.models.registry import build_model
from ramet.runtime.weights.source import open_source

CONFIG: dict[str, Any] = dict(
    model_type="llama", vocab_size=8, hidden_size=4, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=16,
)  # fmt: skip


def folder(path: Path, *, config: dict[str, Any] | None = None, drop: str = "") -> Path:
    (path / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (8, 4), "model.norm.weight": (4,), "lm_head.weight": (8, 4),
        f"{layer}.input_layernorm.weight": (4,), f"{layer}.post_attention_layernorm.weight": (4,),
        f"{layer}.self_attn.q_proj.weight": (4, 4), f"{layer}.self_attn.k_proj.weight": (2, 4),
        f"{layer}.self_attn.v_proj.weight": (2, 4), f"{layer}.self_attn.o_proj.weight": (4, 4),
        f"{layer}.mlp.gate_proj.weight": (6, 4), f"{layer}.mlp.up_proj.weight": (6, 4),
        f"{layer}.mlp.down_proj.weight": (4, 6),
    }  # fmt: skip
    save_file({name: torch.ones(shape) for name, shape in shapes.items() if name != drop}, path / "model.safetensors")
    return path


def small_gguf(path: Path, architecture: str = "llama", **more: int) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in {
        "block_count": 1, "context_length": 16, "embedding_length": 32, "feed_forward_length": 32,
        "attention.head_count": 2, **more,
    }.items():  # fmt: skip
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_merges(["a b"])
    writer.add_tensor("token_embd.weight", np.ones((3, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def error_of(path: Path, kind: type[ModelError]) -> str:
    with pytest.raises(kind) as caught:
        source = open_source(path)
        source.tokenizer()
        build_model(source.config, source, dtype=torch.float32)
    return str(caught.value)


def test_nothing_there(tmp_path: Path) -> None:
    assert "does not exist" in error_of(tmp_path / "nothing", ModelNotFound)
    assert "neither config.json nor a .gguf" in error_of(tmp_path, ModelNotFound)


def test_two_gguf_files_are_listed(tmp_path: Path) -> None:
    small_gguf(tmp_path / "a.gguf")
    assert open_source(tmp_path).path.name == "a.gguf"
    small_gguf(tmp_path / "b.gguf")
    assert "a.gguf, b.gguf" in error_of(tmp_path, ModelNotFound)


def test_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"")
    assert "empty" in error_of(tmp_path / "x.gguf", WeightsCorrupt)
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04 a zip archive")
    assert "starts with b'PK" in error_of(tmp_path / "x.gguf", WeightsCorrupt)
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<I", 1) + bytes(64))
    assert "version 1" in error_of(tmp_path / "x.gguf", UnsupportedModel)
    (tmp_path / "x.txt").write_text("hello")
    assert "not a model" in error_of(tmp_path / "x.txt", UnsupportedModel)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(share=st.floats(0, 0.999))
def test_a_gguf_file_cut_anywhere_is_told(tmp_path: Path, share: float) -> None:
    path = tmp_path / "whole.gguf"
    whole = path.read_bytes() if path.exists() else small_gguf(path).read_bytes()
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(whole[: int(len(whole) * share)])
    error_of(torn, WeightsCorrupt)


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.integers(0, 600), value=st.integers(0, 255))
def test_a_flipped_byte_is_survived_or_told(tmp_path: Path, place: int, value: int) -> None:
    path = tmp_path / "whole.gguf"
    whole = bytearray(path.read_bytes() if path.exists() else small_gguf(path).read_bytes())
    whole[place % len(whole)] = value
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(whole)
    try:
        open_source(damaged).tokenizer()
    except ModelError as error:
        assert str(error)


def test_unknown_tensor_types_list_the_known_ones(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    kind = gguf.GGMLQuantizationType.IQ2_XXS
    writer.add_tensor("token_embd.weight", np.zeros((2, 66), dtype=np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "ggml type 16. Known: F32, F16, Q4_0" in error_of(tmp_path / "x.gguf", UnsupportedModel)


def test_files_in_parts_say_how_to_join_them(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x-00001-of-00002.gguf", "llama")
    writer.add_uint16("split.count", 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "llama-gguf-split --merge" in error_of(tmp_path / "x-00001-of-00002.gguf", UnsupportedModel)


def test_unknown_architectures(tmp_path: Path) -> None:
    assert "'mamba'" in error_of(small_gguf(tmp_path / "m.gguf", "mamba"), UnsupportedModel)
    assert "mixture of experts" in error_of(small_gguf(tmp_path / "e.gguf", expert_count=8), UnsupportedModel)
    assert "'mamba'" in error_of(folder(tmp_path, config={"model_type": "mamba"}), UnsupportedModel)


@pytest.mark.parametrize(
    ("config", "kind", "word"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, UnsupportedModel, "longrope"),
        ({"hidden_act": "relu2"}, UnsupportedModel, "relu2"),
        ({"quantization_config": {"quant_method": "gptq"}}, UnsupportedModel, "gptq"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModel, "partial rotary"),
        ({"num_attention_heads": 3}, WeightsCorrupt, "multiple"),
        ({"num_hidden_layers": "many"}, WeightsCorrupt, "num_hidden_layers"),
        ({"hidden_size": None}, WeightsCorrupt, "hidden_size"),
        ({"head_dim": 3}, UnsupportedModel, "even"),
    ],
)
def test_configs_that_would_run_wrong(
    tmp_path: Path, config: dict[str, Any], kind: type[ModelError], word: str
) -> None:
    path = folder(tmp_path, config={"num_key_value_heads": 2, **config} if "num_attention_heads" in config else config)
    assert word in error_of(path, kind)


def test_config_that_is_no_json(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "not readable JSON" in error_of(tmp_path, WeightsCorrupt)
    (tmp_path / "config.json").write_text("[]")
    assert "expected an object" in error_of(tmp_path, WeightsCorrupt)


def test_torn_safetensors(tmp_path: Path) -> None:
    file = folder(tmp_path) / "model.safetensors"
    whole = file.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        file.write_bytes(whole[:size])
        assert "damaged or cut short" in error_of(tmp_path, WeightsCorrupt)


def test_missing_pieces_of_a_folder(tmp_path: Path) -> None:
    folder(tmp_path)
    assert "no tokenizer.json" in error_of(tmp_path, ModelNotFound)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}))
    assert "lacks 1 of 1 shards" in error_of(tmp_path, WeightsCorrupt)
    index.unlink()
    (tmp_path / "model.safetensors").unlink()
    assert "no .safetensors" in error_of(tmp_path, ModelNotFound)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pickles" in error_of(tmp_path, UnsupportedModel)


def test_missing_and_misshapen_tensors(tmp_path: Path) -> None:
    path = folder(tmp_path, drop="model.layers.0.mlp.up_proj.weight")
    with pytest.raises(WeightsCorrupt, match=r"no tensor 'model\.layers\.0\.mlp\.up_proj\.weight'"):
        build(path)
    folder(tmp_path, config={"intermediate_size": 7})
    with pytest.raises(WeightsCorrupt, match=r"mlp\.gate_proj\.weight has shape \(6, 4\), expected \(7, 4\)"):
        build(path)


def test_sharded_folder_reads_as_one(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.arange(4.0)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"lm_head.weight": torch.ones(8, 4, dtype=torch.bfloat16)}, tmp_path / "model-00002-of-00002.safetensors")
    places = {
        "model.norm.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    source = open_source(tmp_path)
    assert sorted(source.names()) == ["lm_head.weight", "model.norm.weight"]
    assert source.read("model.norm.weight").tolist() == [0, 1, 2, 3]
    assert source.read("lm_head.weight").dtype == torch.float32
    assert source.read_raw("lm_head.weight").dtype == torch.bfloat16
    assert source.num_parameters() == 36 and source.num_bytes("lm_head.weight") == 64


def build(path: Path) -> None:
    source = open_source(path)
    build_model(source.config, source, dtype=torch.float32)
