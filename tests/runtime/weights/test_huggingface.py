"""A Hugging Face folder: tokenizer, end tokens, templates and weights, wherever its many files say them."""

import contextlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, models, pre_tokenizers, processors
from tokenizers import Tokenizer as RawTokenizer

from ramet.runtime.errors import ModelError, UnsupportedModel, WeightsCorrupt
from ramet.runtime.models.registry import build_model
from ramet.runtime.weights.huggingface import HuggingFaceSource
from ramet.runtime.weights.load import Progress, load

CONFIG = dict(
    model_type="llama", vocab_size=12, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=16, tie_word_embeddings=True, bos_token_id=3, eos_token_id=[4, 5],
)  # fmt: skip
LAYER = {
    "input_layernorm": (8,), "post_attention_layernorm": (8,), "self_attn.q_proj": (8, 8), "self_attn.k_proj": (8, 8),
    "self_attn.v_proj": (8, 8), "self_attn.o_proj": (8, 8), "mlp.gate_proj": (8, 8), "mlp.up_proj": (8, 8),
    "mlp.down_proj": (8, 8),
}  # fmt: skip


def make_folder(path: Path, *, prefix: str = "model.", config: Mapping[str, Any] = CONFIG, **files: Any) -> Path:
    """`files`: name (with _ for .) -> JSON value or text."""
    (path / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        stem, _, suffix = name.rpartition("_")
        (path / f"{stem}.{suffix}").write_text(content if isinstance(content, str) else json.dumps(content))
    raw = RawTokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.add_special_tokens([AddedToken(name) for name in ("<bos>", "<eos>", "<end>", "<|im_end|>")])
    raw.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 3)])
    raw.save(str(path / "tokenizer.json"))
    tensors = {f"{prefix}layers.0.{name}.weight": torch.randn(shape) for name, shape in LAYER.items()}
    tensors |= {f"{prefix}embed_tokens.weight": torch.randn(12, 8), f"{prefix}norm.weight": torch.ones(8)}
    save_file(tensors, path / "model.safetensors")
    return path


def test_end_tokens_are_gathered_from_every_file(tmp_path: Path) -> None:
    source = HuggingFaceSource(
        make_folder(tmp_path, generation_config_json={"eos_token_id": 5}, tokenizer_config_json={"eos_token": "<eos>"})
    )
    assert source.generation_end_ids == (4, 5, 6)
    tokenizer = source.tokenizer()
    assert (tokenizer.eos_id, tokenizer.bos_id) == (4, 3) and tokenizer.adds_bos  # its post-processor adds one
    assert tokenizer.encode("ab") == [2] and tokenizer.encode("ab", add_bos=True) == [3, 2]


def test_tokens_may_be_objects_and_bos_may_be_declined(tmp_path: Path) -> None:
    settings = {"bos_token": {"content": "<end>"}, "add_bos_token": False, "eos_token": None}
    tokenizer = HuggingFaceSource(make_folder(tmp_path, tokenizer_config_json=settings)).tokenizer()
    assert tokenizer.bos_id == 5 and not tokenizer.adds_bos


@pytest.mark.parametrize(
    ("files", "default", "names"),
    [
        ({}, None, set()),
        ({"tokenizer_config_json": {"chat_template": "old"}}, "old", {"default"}),
        ({"chat_template_json": {"chat_template": "json"}}, "json", {"default"}),
        ({"tokenizer_config_json": {"chat_template": "old"}, "chat_template_jinja": "new"}, "new", {"default"}),
        (
            {"tokenizer_config_json": {"chat_template": [{"name": "default", "template": "d"},
                                                         {"name": "tool_use", "template": "t"}]}},
            "d", {"default", "tool_use"},
        ),
    ],
)  # fmt: skip
def test_templates_lie_in_several_places(tmp_path: Path, files: Any, default: str | None, names: set[str]) -> None:
    source = HuggingFaceSource(make_folder(tmp_path, **files))
    assert source.chat_template == default and set(source.chat_templates) == names


def test_text_half_of_a_multimodal_checkpoint(tmp_path: Path) -> None:
    text = {**CONFIG, "model_type": "gemma3_text", "head_dim": 4}
    for prefix in ("language_model.model.", "model.language_model."):
        source = HuggingFaceSource(
            make_folder(tmp_path, prefix=prefix, config={"model_type": "gemma3", "text_config": text})
        )
        assert source.config.model_type == "gemma3_text" and source.has("model.layers.0.mlp.up_proj.weight")


def test_loading_reports_all_bytes_even_of_tensors_that_nobody_reads(tmp_path: Path) -> None:
    seen: list[Progress] = []
    make_folder(tmp_path)
    save_file({"vision.patch.weight": torch.zeros(1000)}, tmp_path / "vision.safetensors")
    loaded = load(tmp_path, dtype=torch.float32, progress=seen.append)
    assert seen[-1].done_bytes == seen[-1].total_bytes > 4000
    assert loaded.name == tmp_path.name and loaded.weight_bytes == 4 * (9 * 64 - 2 * 64 + 2 * 8 + 8 + 96)
    assert loaded.chat_templates == {} and loaded.chat_template is None


def test_snapshot_of_the_hub_is_named_by_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--name" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    assert load(make_folder(folder)).name == "org/name"


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    make_folder(tmp_path)
    save_file({"model.norm.weight": torch.ones(8, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="I8"):
        HuggingFaceSource(tmp_path).read("model.norm.weight")


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(WeightsCorrupt, match="not a tokenizer"):
        HuggingFaceSource(tmp_path).tokenizer()


def test_a_post_processor_that_names_no_token(tmp_path: Path) -> None:
    file = make_folder(tmp_path) / "tokenizer.json"
    file.write_text(
        file.read_text().replace(
            '"SpecialToken": {\n          "id": "<bos>"', '"SpecialToken": {\n          "id": "<bus>"'
        )
    )
    with pytest.raises(WeightsCorrupt, match="post-processor"):
        HuggingFaceSource(tmp_path).tokenizer()


def test_flipped_bytes_are_survived_or_told(tmp_path: Path) -> None:
    settings = {"chat_template": "x", "eos_token": "<eos>", "bos_token": {"content": "<bos>"}}
    make_folder(tmp_path, tokenizer_config_json=settings, generation_config_json={"eos_token_id": [5]})
    originals = {file: file.read_bytes() for file in sorted(tmp_path.iterdir())}
    rng = random.Random(0)
    for _ in range(400):
        file, whole = rng.choice(list(originals.items()))
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 2])):
            damaged[rng.randrange(min(len(damaged), 900))] = rng.choice(b'0189"{}[],:nulltrue-.\x00\xff')
        file.write_bytes(damaged)
        with contextlib.suppress(ModelError):
            source = HuggingFaceSource(tmp_path)
            assert source.tokenizer().end_ids == source.generation_end_ids
            build_model(source.config, source, dtype=torch.float32, num_positions=64)
        file.write_bytes(whole)
